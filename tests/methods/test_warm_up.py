"""Training on source images before the stream, and the blocks that methods put layers around."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from passes import segformer
from torch import Tensor, nn

from testdg.core.fitting import rate
from testdg.methods.parts.blocks import convolution_blocks, run_to_head, transformer_blocks
from testdg.methods.parts.warm_up import supervised_loss, train_on_source
from testdg.models import VisionModel, load_model
from testdg.models.blocks import width_of
from testdg.models.resnet import CifarResNet


def test_a_label_map_is_met_at_its_own_size_and_pixels_without_a_class_do_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 4, generator=generator)
    labels = torch.randint(3, (2, 8, 8), generator=generator).to(torch.uint8)
    labels[0, :5] = 255
    large = F.interpolate(logits, (8, 8), mode="bilinear").double().log_softmax(1)
    losses = [
        -float(large[n, int(labels[n, y, x]), y, x])
        for n in range(2)
        for y in range(8)
        for x in range(8)
        if int(labels[n, y, x]) != 255
    ]
    assert float(supervised_loss(logits, labels)) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert float(supervised_loss(logits, torch.full_like(labels, 255))) == 0


def test_class_255_of_a_classifier_counts() -> None:
    logits = torch.zeros(2, 300)
    assert float(supervised_loss(logits, torch.tensor([255, 3]))) == pytest.approx(torch.tensor(300.0).log())


def test_the_rate_follows_the_number_of_images_and_more_batches_are_left_alone() -> None:
    weight = nn.Parameter(torch.zeros(1))
    batches = ((torch.ones(4), torch.zeros(4)) for _ in range(9))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return weight.sum()

    train_on_source(loss, torch.optim.SGD([weight], 1.0), batches, 18)
    assert float(weight.detach()) == pytest.approx(-sum(rate(step, 5) for step in range(5)))
    assert weight.grad is None
    assert len(list(batches)) == 4
    train_on_source(loss, torch.optim.SGD([weight], 1.0), [], 18)


def test_blocks_are_found_by_structure(vit: VisionModel, cnn: VisionModel) -> None:
    config = transformers.ViTConfig(hidden_size=12, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8)
    hub = load_model(transformers.ViTForImageClassification(config))
    assert [width_of(block) for block in transformer_blocks(hub)] == [12, 12, 12]
    assert [width_of(block) for block in transformer_blocks(segformer())] == [8, 8, 16, 16]
    assert transformer_blocks(vit) == list(vit.network.get_submodule("blocks"))
    assert transformer_blocks(cnn) == []
    assert convolution_blocks(cnn) == list(cnn.network.get_submodule("stages"))
    assert len(convolution_blocks(load_model(CifarResNet(depth=20)))) == 9


def test_what_enters_and_leaves_the_classifier() -> None:
    model = segformer()
    images = torch.rand(1, 3, 32, 32)
    found = run_to_head(model, images)
    assert (found.features.shape, found.scores.shape) == ((1, 16, 8, 8), (1, 5, 8, 8))
    head = model.network.get_submodule(model.head)
    torch.testing.assert_close(head(found.features), found.scores)
    assert torch.equal(found.logits, model(images).logits)
