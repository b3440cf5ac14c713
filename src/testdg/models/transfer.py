"""Changing a model for other data: its classifier and the size of its input."""

import copy
import dataclasses
from collections.abc import Sequence
from math import isqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models import timm_models
from testdg.models.blocks import config_of, name_classes
from testdg.models.model import VisionModel
from testdg.models.tiny import TinyViT


def with_classes(model: VisionModel, classes: Sequence[str], seed: int = 0) -> VisionModel:
    """A copy of the model with a new linear classifier (of features or of pixels), drawn from a seed."""
    network = copy.deepcopy(model.network)
    if model.head is None:
        raise UserError(f"{model.name} has no known head, so its classes cannot be replaced", code="no-head")
    parent, _, leaf = model.head.rpartition(".")
    old = network.get_submodule(model.head)
    fresh: nn.Linear | nn.Conv2d
    if isinstance(old, nn.Conv2d) and old.kernel_size == (1, 1):
        fresh = nn.Conv2d(old.in_channels, len(classes), 1, device="meta")
    elif isinstance(old, nn.Linear):
        fresh = nn.Linear(old.in_features, len(classes), device="meta")
    else:
        raise UserError(f"the classifier {model.head!r} of {model.name} is not linear", code="no-head")
    fresh = fresh.to_empty(device=old.weight.device)
    generator = torch.Generator("cpu").manual_seed(seed)
    weights = torch.randn(fresh.weight.shape, generator=generator, device="cpu") * 0.02
    fresh.load_state_dict({"weight": weights, "bias": torch.zeros(len(classes), device="cpu")})
    setattr(network.get_submodule(parent), leaf, fresh)
    name_classes(network, classes)
    return type(model)(network, model.head, model.preprocessing, model.name, exact=model.exact)


def with_size(model: VisionModel, size: int) -> VisionModel:
    """A copy of the model for images of size x size; position embeddings are interpolated."""
    preprocessing = dataclasses.replace(model.preprocessing, size=(size, size), crop=None)
    fresh = timm_models.resized(model.network, model.classes, size) or _empty_copy(model.network, size)
    weights = model.network.state_dict()
    for name, value in fresh.state_dict().items():
        if "pos" in name and value.ndim == 3 and value.shape != weights[name].shape:
            weights[name] = _interpolate(weights[name], value.shape[1])
    changed = VisionModel(fresh, model.head, preprocessing, model.name, classes=model.classes, exact=model.exact)
    try:
        fresh.load_state_dict(weights)
        with torch.no_grad():
            changed.eval()(changed.empty_image())
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[-1].strip()
        problem = f"model {model.name} cannot take images of {size} x {size}: {reason}"
        raise UserError(problem, code="image-size") from error
    return changed.train(model.training)


def _empty_copy(network: nn.Module, size: int) -> nn.Module:
    """Make a network of the same kind for another image size; a network without an image size is copied."""
    config = config_of(network)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        if isinstance(network, TinyViT):
            return TinyViT(**{**config, "size": size})
        if isinstance(getattr(config, "image_size", None), int):
            config = copy.deepcopy(config)
            config.image_size = size
            return type(network)(config)
    return copy.deepcopy(network)


def _interpolate(positions: Tensor, count: int) -> Tensor:
    """Resize the square part of position embeddings, (1, T, D), to `count` in total; the tokens before it stay."""
    old, new = (isqrt(number) for number in (positions.shape[1], count))
    extra = positions.shape[1] - old**2  # class tokens and similar: too few for a larger square
    square = positions[:, extra:].mT.reshape(1, -1, old, old)  # (1, D, old, old)
    resized = F.interpolate(square, (new, new), mode="bicubic", align_corners=False)
    return torch.cat([positions[:, :extra], resized.flatten(2).mT], 1)
