"""BatchNorm layers that normalise by a mixture of the source, the memory of the stream and the batch at hand."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.models import WithActivation
from testdg.models import Preprocessing, load_model
from testdg.models.alignment import Alignment
from testdg.models.sites import NormSite

CHANNELS = 3


class Small(nn.Module):
    """One BatchNorm layer and a classifier."""

    def __init__(self, norm: nn.BatchNorm2d | None = None) -> None:
        super().__init__()
        self.norm = norm or nn.BatchNorm2d(CHANNELS, eps=1e-3)
        self.head = nn.Linear(CHANNELS, 4)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for value, low, high in (("weight", 0.5, 2), ("bias", -1, 1), ("running_mean", -1, 1)):
                getattr(self.norm, value).uniform_(low, high, generator=generator)
            self.norm.running_var.uniform_(0.5, 2, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(images).mean((2, 3)))  # type: ignore[no-any-return]


def aligned(norm: nn.BatchNorm2d | None = None, memory: float = 128, source: float = 1.5, **options: Any) -> Alignment:
    model = load_model(Small(norm), preprocessing=Preprocessing((8, 8), mean=(0.0,) * 3, std=(1.0,) * 3))
    options = {"prefix": 0, "class_token": False, "memory": 1.0, **options}
    alignment = Alignment(model.eval(), [], norms=["norm"], norm_memory=memory, norm_source=source, **options)
    alignment.__dict__["model"] = model
    return alignment


def layer_of(alignment: Alignment) -> nn.BatchNorm2d:
    return alignment.model.network.norm  # type: ignore[no-any-return, union-attr]


def site_of(alignment: Alignment) -> NormSite:
    site = alignment.norm_sites[0]
    assert isinstance(site, NormSite)
    return site


def maps(count: int, spread: float = 1.0, seed: int = 0) -> Tensor:
    """Feature maps of a domain, which is known by how much a channel varies within an image."""
    generator = torch.Generator().manual_seed(seed)
    centres = 0.5 * torch.randn(count, CHANNELS, 1, 1, generator=generator)
    return centres + spread * torch.randn(count, CHANNELS, 8, 8, generator=generator) + 0.5


class Restated:
    """What a site does, by first and second moments in double precision."""

    def __init__(self, layer: nn.BatchNorm2d, memory: float, source: float) -> None:
        self.layer, self.memory, self.source = layer, memory, source
        self.images, self.first, self.second = 0.0, torch.zeros(CHANNELS), torch.zeros(CHANNELS)
        self.known, self.look = 0.0, torch.zeros(2 * CHANNELS).double()
        self.between = torch.full((2 * CHANNELS,), 0.3).double()
        self.gap = 0.0

    def __call__(self, batch: Tensor, following: bool) -> Tensor:
        x, n = batch.double(), len(batch)
        looks = torch.stack([self._look(image) for image in x])
        squared = (looks.mean(0) - self.look) ** 2 / self.between.clamp(min=1e-6)
        self.gap = float(sum(squared) / len(squared))
        if following:
            used = 0.0 if self.gap > 0.5 and n >= 10 else self.images
        else:
            used = self.images * min(1.0, max(0.0, 2 - 10 * self.gap))
        total = used + n
        first = (used * self.first + n * x.mean((0, 2, 3))) / total
        second = (used * self.second + n * (x * x).mean((0, 2, 3))) / total
        if following:
            self._remember(looks, begins=self.known == 0 or (self.gap > 0.5 and n >= 10))
            self.images, self.first, self.second = min(total, self.memory), first, second
        return self._normalised(x, first, second, total)

    def _look(self, image: Tensor) -> Tensor:
        floor = 1e-3 * (self.layer.running_var.double() + self.layer.eps)
        within = ((image - image.mean((1, 2), keepdim=True)) ** 2).mean((1, 2))
        return torch.cat([image.mean((1, 2)), (within + floor).log()])

    def _remember(self, looks: Tensor, begins: bool) -> None:
        n, known, mean = len(looks), max(10.0, self.known), looks.mean(0) if begins else self.look
        first = (known * mean + looks.sum(0)) / (known + n)
        second = (known * (self.between + mean**2) + (looks**2).sum(0)) / (known + n)
        self.known, self.look, self.between = min(known + n, max(10, self.memory)), first, second - first**2

    def _normalised(self, x: Tensor, first: Tensor, second: Tensor, images: float) -> Tensor:
        layer, weight = self.layer, self.source * (images + 2)
        mean, variance = layer.running_mean.double(), layer.running_var.double()
        mixed = (images * first + weight * mean) / (images + weight)
        square = (images * second + weight * (variance + mean**2)) / (images + weight)
        columns = [v.double()[:, None, None] for v in (mixed, square - mixed**2, layer.weight, layer.bias)]
        return (x - columns[0]) / (columns[1] + layer.eps).sqrt() * columns[2] + columns[3]


# The formulas

STREAM = [
    (20, 1.0, True), (30, 1.0, True),
    (40, 1.0, False), (40, 1.04, False), (40, 1.06, False), (40, 1.08, False), (8, 1.15, False),
    (8, 1.2, False), (8, 1.5, False), (20, 4.0, False), (1, 1.0, False),
    (5, 4.0, True), (12, 4.0, True), (30, 4.0, True), (7, 4.0, False), (1, 1.0, True), (3, 1.2, False), (90, 1.0, True),
]  # fmt: skip
"""Number of images, spread and whether the memory follows."""


@pytest.mark.parametrize(("memory", "source"), [(128, 1.5), (40, 0.5), (0, 1.5), (128, 0.0)])
@torch.no_grad()
def test_images_are_normalised_by_the_formulas(memory: int, source: float) -> None:
    alignment = aligned(memory=memory, source=source)
    layer, site = layer_of(alignment), site_of(alignment)
    plain, gaps = Restated(layer, memory, source), []
    for seed, (count, spread, following) in enumerate(STREAM):
        batch = maps(count, spread, seed)
        if following:
            with alignment.follow():
                found = layer(batch)
        else:
            found = layer(batch)
        torch.testing.assert_close(found, plain(batch, following).float(), rtol=1e-3, atol=1e-4)
        gaps.append(plain.gap)
        pixels, known = site.read("pixels"), site.read("images")
        assert (float(pixels.images), float(known.images)) == (plain.images, plain.known)
        torch.testing.assert_close(pixels.mean, plain.first.float(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(known.variance, plain.between.float(), rtol=1e-3, atol=1e-4)
    assert min(gaps[1:]) < 0.1
    assert max(gaps[1:]) > 1
    assert any(0.1 < gap < 0.2 for gap in gaps)


@pytest.mark.parametrize("following", [False, True])
@torch.no_grad()
def test_with_neither_source_nor_memory_it_is_the_batch(following: bool) -> None:
    alignment = aligned(memory=0, source=0.0)
    layer = layer_of(alignment)
    for seed, count in enumerate((3, 20, 1, 40)):
        batch = maps(count, 1.0 + seed, seed)
        site_of(alignment).following = following
        expected = F.batch_norm(batch, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
        torch.testing.assert_close(layer(batch), expected, rtol=1e-4, atol=1e-4)


# The memory


@torch.no_grad()
def followed(alignment: Alignment, spread: float = 1.0, seeds: int = 3) -> Alignment:
    with alignment.follow():
        for seed in range(seeds):
            layer_of(alignment)(maps(40, spread, seed))
    return alignment


@torch.no_grad()
def test_images_of_a_far_domain_do_not_read_the_memory() -> None:
    alignment, fresh = followed(aligned()), aligned()
    for seed in range(5):
        far, near = maps(1, 5.0, seed), maps(8, 1.0, seed + 50)
        torch.testing.assert_close(layer_of(alignment)(far), layer_of(fresh)(far))
        assert not torch.allclose(layer_of(alignment)(near), layer_of(fresh)(near), atol=1e-2)


@pytest.mark.parametrize(("count", "expected"), [(9, 129), (10, 10), (40, 40)])
@torch.no_grad()
def test_only_ten_images_empty_the_memory(count: int, expected: int) -> None:
    alignment = followed(aligned(memory=1000))
    with alignment.follow():
        layer_of(alignment)(maps(count, 5.0, seed=9))
    assert float(site_of(alignment).read("pixels").images) == expected


@torch.no_grad()
def test_the_layer_keeps_the_statistics_of_the_source() -> None:
    alignment, fresh = aligned(), aligned()
    followed(alignment, spread=3.0)
    for name, value in layer_of(fresh).state_dict().items():
        assert torch.equal(layer_of(alignment).state_dict()[name], value)


@torch.no_grad()
def test_a_channel_without_variance_does_not_spoil_the_others() -> None:
    alignment, other = aligned(), aligned()
    for one in (alignment, other):
        layer_of(one).running_var[0] = 5e-45  # as in published ResNets
        layer_of(one).running_mean[0] = 0
    for seed, (count, spread, following) in enumerate(STREAM):
        batch = maps(count, spread, seed)
        batch[:, 0] = 0
        site_of(alignment).following = following
        found = layer_of(alignment)(batch)
        assert bool(found.isfinite().all())
        torch.testing.assert_close(found[:, 0], layer_of(alignment).bias[0].expand_as(found[:, 0]))
    assert all(bool(value.isfinite().all()) for value in alignment.state_dict().values())


# One image by itself


@torch.no_grad()
def test_images_alone_do_not_depend_on_each_other() -> None:
    alignment = followed(aligned(reads="image"))
    layer, batch = layer_of(alignment), maps(6, 2.0)
    found = layer(batch)
    torch.testing.assert_close(torch.cat([layer(image[None]) for image in batch]), found)
    for image, one in zip(batch, found, strict=True):
        expected = Restated(layer, 0, 1.5)(image[None], following=False)[0]
        torch.testing.assert_close(one, expected.float(), rtol=1e-4, atol=1e-4)


# Gradients and precision


def test_gradients_pass_the_images_and_not_the_statistics() -> None:
    alignment = followed(aligned())
    layer, batch = layer_of(alignment), maps(12).requires_grad_(True)
    layer.requires_grad_(True)
    by_images, by_weight = torch.autograd.grad((layer(batch) * maps(12, seed=3)).sum(), [batch, layer.weight])
    per_channel = (by_images / maps(12, seed=3)).transpose(0, 1).flatten(1)  # the same factor for every pixel
    torch.testing.assert_close(per_channel, per_channel[:, :1].expand_as(per_channel), rtol=1e-4, atol=1e-5)
    normalised = (layer(batch).detach() - layer.bias.detach()[:, None, None]) / layer.weight.detach()[:, None, None]
    torch.testing.assert_close(by_weight, (normalised * maps(12, seed=3)).sum((0, 2, 3)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("reads", ["memory", "image"])
@torch.no_grad()
def test_bf16_images_are_normalised_by_full_statistics(reads: Any) -> None:
    alignment, full = (followed(aligned(reads=reads)) for _ in range(2))
    batch = maps(12).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = layer_of(alignment)(batch)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), layer_of(full)(batch.float()), rtol=2e-2, atol=3e-2)
    assert {value.dtype for value in alignment.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("reads", ["memory", "image"])
@torch.no_grad()
def test_what_else_a_layer_does_remains(reads: Any) -> None:
    one = followed(aligned(WithActivation(CHANNELS, eps=1e-3), reads=reads))
    other = followed(aligned(reads=reads))
    for batch in (maps(12), maps(12, 5.0)):
        found, expected = layer_of(one)(batch), layer_of(other)(batch).relu()
        assert bool((expected == 0).any())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
