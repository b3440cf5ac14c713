"""Training on source images before the stream, and the blocks that methods put layers around."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from support.errors import refused
from support.literal import same
from support.networks import segformer
from testdg import adapt
from testdg.core.fitting import rate
from testdg.methods.parts.blocks import convolution_blocks, run_to_head, transformer_blocks
from testdg.methods.parts.warm_up import supervised_loss, train_on_source
from testdg.models import VisionModel, load_model
from testdg.models.blocks import width_of
from testdg.models.resnet import CifarResNet
from testdg.testing import same_state, stream

Case = tuple[str, dict[str, Any]]


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


# Source images come before the stream

NEED: list[Case] = [
    (name, {}) for name in ("actmad", "align", "dept", "dpcore", "eata", "ecotta", "foa", "testdg_aligned", "vida")
]
CHOSEN: list[Case] = [
    ("neo", {"anchor": "source"}),
    ("obao", {"graph": "prototypes"}),
    ("testdg", {"source_images": 4}),
]


@pytest.mark.parametrize(("method", "settings"), [*NEED, *CHOSEN], ids=str)
def test_without_source_images_the_first_batch_is_refused(
    method: str, settings: dict[str, Any], vit: VisionModel
) -> None:
    adapter = adapt(vit, method, **settings)
    with refused("no-source-data", "warm_up"):
        adapter(torch.rand(2, 3, 32, 32))
    assert same_state(adapter, adapt(vit, method, **settings)) is None


@pytest.mark.parametrize(
    ("method", "settings", "sizes"),
    [
        ("actmad", {}, [1, 1]),
        *(("align", {}, sizes) for sizes in ([], [1], [63])),
        *(("testdg_aligned", {"sites": sites}, sizes) for sites in (2, 0) for sizes in ([], [40, 23])),
        ("dpcore", {"source_entropy": 0.01}, [16]),  # random weights: all entropies are near ln 10
    ],
    ids=str,
)
def test_too_few_source_images_are_refused(
    method: str, settings: dict[str, Any], sizes: list[int], vit: VisionModel
) -> None:
    with refused("few-source-images"):
        adapt(vit, method, **settings).warm_up(torch.rand(size, 3, 32, 32) for size in sizes)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("becotta", {"warm_up_learning_rate": 1e-2, "margin": 1.0}),
        ("dept", {"warm_up_learning_rate": 0.1, "prompts": 5, "flip": False}),
        ("ecotta", {"warm_up_learning_rate": 0.5, "margin": 1.0}),
        ("vida", {"warm_up_learning_rate": 1e-2, "low_rank": 2, "high_rank": 4, "views": 3}),
    ],
    ids=str,
)
def test_a_warm_up_teaches_and_reset_returns_to_it(method: str, settings: dict[str, Any], vit: VisionModel) -> None:
    adapter = adapt(vit, method, source_images=180, learning_rate=1e-2, **settings)
    images, labels = stream(adapter, 1, 6)[0], torch.arange(6)
    before = F.cross_entropy(adapter.predict(images), labels)
    adapter.warm_up((images, labels) for _ in range(30))
    warm = adapter.predict(images)
    assert float(F.cross_entropy(warm, labels)) < 0.9 * float(before)
    head = f"{vit.head}." if method == "dept" else "nothing"
    for name, value in vit.network.state_dict().items():
        assert torch.equal(adapter.model.network.state_dict()[name], value) or name.startswith(head), name
    copies = {"becotta": ["source"], "dept": ["teacher"], "vida": ["teacher_adapters", "source_adapters"]}
    learnt = adapter.get_submodule("adapters" if method == "vida" else "model")
    assert all(same(adapter.get_submodule(name), learnt) for name in copies.get(method, []))
    for _ in range(2):
        adapter(images)
    assert not torch.equal(adapter.predict(images), warm)
    adapter.reset()
    assert torch.equal(adapter.predict(images), warm)
