"""CUDA graphs give what the same steps give one kernel at a time."""

import copy

import pytest
import torch

from testdg import Preprocessing, adapt, load_model
from testdg.core.guard.health import Movement
from testdg.core.guard.inputs import Inputs
from testdg.models import TinyViT
from testdg.testing import stream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_steps_equal_plain_steps(precision):
    torch.manual_seed(0)
    model = load_model(TinyViT(), preprocessing=Preprocessing((32, 32))).cuda()

    def started(**more):
        adapter = adapt(model, "testdg_aligned", gather=12, precision=precision, **more)
        adapter.warm_up(stream(adapter, 8, 20, seed=1)[:4])
        return adapter

    plain, recorded = started(), started(cuda_graphs=True)
    batches = stream(plain, 30, 12)
    for images in batches:
        torch.testing.assert_close(recorded(images), plain(images), rtol=1e-2, atol=1e-2)
    assert recorded.recorded["learn"].graphs, "nothing was recorded"
    recorded.reset()
    torch.testing.assert_close(recorded(batches[0]), started(cuda_graphs=True)(batches[0]))


def test_a_guard_on_the_gpu_sees_what_one_on_the_cpu_does():
    plain, recorded = Inputs(), Inputs().cuda()
    for number in range(12):
        images = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(number % 9))
        images = torch.nn.functional.interpolate(images, size=(40, 40), mode="bilinear")
        images[number % 8] = number % 3 / 2
        assert recorded.look(images.cuda()) == plain.look(images)
    assert recorded._recorded.graphs, "nothing was recorded"
    torch.testing.assert_close(recorded.thumbnails.cpu(), plain.thumbnails)


def test_a_guard_on_the_gpu_measures_what_one_on_the_cpu_does():
    layers = [torch.nn.Linear(5, 4)]
    layers.append(copy.deepcopy(layers[0]).cuda())
    plain, recorded = (Movement(dict(layer.named_parameters())) for layer in layers)
    for number in range(12):
        logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
        logits[0, 0] = float("nan") if number == 7 else 1.0
        with torch.no_grad():
            for layer in layers:
                layer.weight.add_(0.01)
        if number == 9:
            plain.mark()
            recorded.mark()
        one, other = plain.after(logits), recorded.after(logits.cuda())
        assert (one.finite, one.classes) == (other.finite, other.classes)
        assert other.moved == pytest.approx(one.moved, rel=1e-4)
    assert recorded._recorded.graphs, "nothing was recorded"
