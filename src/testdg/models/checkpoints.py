"""Weights without their network, as .pt, .pth or a folder: tensors alone are read, and put where a network has them."""

import copy
import pickle
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from testdg.bounds import check_file
from testdg.errors import UserError
from testdg.models import timm_models
from testdg.models.heads import wrap
from testdg.models.model import VisionModel
from testdg.models.preprocessing import Preprocessing, nobody_said, read_preprocessor
from testdg.models.transfer import with_classes
from testdg.models.untrusted import CONFIG, budget_of, find_weights, first_line, read_config

PICKLED = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_HOLDERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params", "ema", "state_dict_ema")
_WRAPPERS = ("module", "model", "_orig_mod", "network", "net", "encoder")
_BRANCH = ("down", "up", "lora", "adapter", "scale", "amp")
"""Words in the names of what stands beside a layer."""


class Fitted(NamedTuple):
    """Weights by the names of a network; branches beside its layers; names that have no place in it."""

    weights: dict[str, Tensor]
    branches: dict[str, Tensor]
    unknown: list[str]


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a pickle that holds nothing else; no code in it is executed."""
    if path.suffix == ".safetensors":
        budget_of([path])  # an ordinary file with a header
        tensors: dict[str, Tensor] = load_file(path)
        return tensors
    try:
        check_file(path)
        with torch.serialization.safe_globals([Namespace]):  # plain values: trainings keep their options in one
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        told = f"{path} holds more than tensors, which could execute code when it is read"
        raise UserError(f"{told}: save the state_dict() of the module alone") from error
    except (OSError, ValueError, RuntimeError, EOFError, BadZipFile, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    weights = _tensors(content)
    if not weights:
        raise UserError(f"{path} holds no weights: expected tensors by name, as state_dict() gives them")
    return weights


def _tensors(content: Any) -> dict[str, Tensor]:
    """The tensors by name, wherever a training has put them."""
    if not isinstance(content, Mapping):
        return {}
    for key in _HOLDERS:
        if isinstance(content.get(key), Mapping) and (inner := _tensors(content[key])):
            return inner
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def fit_weights(given: Mapping[str, Tensor], network: nn.Module) -> Fitted:
    """Sort tensors by the place that they have in a network, however it was wrapped when they were saved."""
    expected = network.state_dict()
    fitted = Fitted({}, {}, [])
    for name, value in given.items():
        own = _unwrapped(name, expected)
        layer = _layer_of(own, expected)
        inside = f"{layer}.{own.rpartition('.')[2]}"  # of a wrapped layer: `qkv.linear_vida.weight` is `qkv.weight`
        if own in expected:
            fitted.weights.setdefault(own, value)
        elif layer is None:
            fitted.unknown.append(name)
        elif inside in expected and not any(word in own.removeprefix(layer) for word in _BRANCH):
            fitted.weights.setdefault(inside, value)
        else:
            fitted.branches[own] = value
    return fitted


def _unwrapped(name: str, expected: Mapping[str, Tensor]) -> str:
    """A name without what wrappers put before it."""
    own = name
    while own not in expected and _layer_of(own, expected) is None:
        first, _, rest = own.partition(".")
        if first not in _WRAPPERS or not rest:
            return name
        own = rest
    return own


def _layer_of(name: str, expected: Mapping[str, Tensor]) -> str | None:
    """The layer of a network that a longer name lies in: `blocks.0.attn.qkv` of `blocks.0.attn.qkv.down.weight`."""
    parts = name.split(".")
    layers = (".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
    return next((layer for layer in layers if f"{layer}.weight" in expected), None)


def load_fitting(given: Mapping[str, Tensor], network: nn.Module, place: str, name: str) -> Fitted:
    """Put tensors into a network; whatever lacks or has another shape is a sentence."""
    fitted, expected = fit_weights(given, network), network.state_dict()
    missing = [own for own in expected if own not in fitted.weights and not own.endswith("num_batches_tracked")]
    if missing:
        unknown = f" and has no place for {fitted.unknown[0]}" if fitted.unknown else ""
        raise UserError(f"{place} does not fit {name}: it lacks {_some(missing)}{unknown}")
    wrong = [own for own, value in fitted.weights.items() if value.shape != expected[own].shape]
    if wrong:
        shapes = f"{tuple(fitted.weights[wrong[0]].shape)}, not {tuple(expected[wrong[0]].shape)}"
        raise UserError(f"{place} does not fit {name}: {_some(wrong)} of another shape ({shapes})")
    with torch.no_grad():
        network.load_state_dict(fitted.weights, strict=False)
    return fitted


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def load_into(
    module: nn.Module | str, place: Path, preprocessing: Preprocessing | None, head: str | None
) -> VisionModel:
    """Put the weights of a folder or a file into a copy of a module, or into a network of timm."""
    config = read_config(place) if (place / CONFIG).is_file() else {}
    weights = find_weights(place)[0] if place.is_dir() else place
    given = read_checkpoint(weights)
    network = copy.deepcopy(module).float() if isinstance(module, nn.Module) else timm_network(module, given).network
    fitted = load_fitting(given, network, str(weights), type(network).__name__)
    if fitted.unknown or fitted.branches:
        first, count = [*fitted.unknown, *fitted.branches][0], len(fitted.unknown) + len(fitted.branches)
        raise UserError(f"{weights} has {count} tensors that {type(network).__name__} has no place for, first {first}")
    name, folder = (place.name, place) if place.is_dir() else (place.stem, place.parent)
    preprocessing = preprocessing or read_preprocessor(folder)
    if preprocessing is None:
        known = hasattr(network, "pretrained_cfg")  # of timm
        preprocessing = timm_models.preprocessing_of(network) if known else nobody_said(name, stacklevel=5)
    model = wrap(network, preprocessing, head or config.get("head"), name)
    if isinstance(config.get("classes"), list):
        model.name_classes([str(label) for label in config["classes"]])
    return model


def timm_network(name: str, weights: Mapping[str, Tensor]) -> VisionModel:
    """A network of timm for weights of others, with random ones still, and as many classes as theirs."""
    name = f"timm:{name.removeprefix('timm:')}"
    network = timm_models.make_network(name, pretrained=False)
    return with_classes_of(weights, wrap(network, timm_models.preprocessing_of(network), None, name))


def with_classes_of(weights: Mapping[str, Tensor], model: VisionModel) -> VisionModel:
    """The model with as many classes as the classifier of a checkpoint has."""
    rows = fit_weights(weights, model.network).weights.get(f"{model.head}.weight")
    if rows is None or len(rows) == model.classes:
        return model
    return with_classes(model, [str(number) for number in range(len(rows))]).eval()


def without_network(path: Path) -> str:
    """What to do with a file of tensors."""
    if not path.is_file():
        return f"{path} does not exist"
    own = f"load_model({str(path)!r}, module=...) from Python, or in a --plugin FILE.py for commands"
    return f"{path} holds weights without their network: testdg convert {path} --timm NAME --out FOLDER, or {own}"


def of_a_module(folder: Path, config: dict[str, Any]) -> str:
    """What to do with a folder of a module of the user's own."""
    name = config.get("module") if str(config.get("module")).isidentifier() else "Module"
    remedy = f"load_model({str(folder)!r}, module={name}()) from Python, or in a --plugin FILE.py for commands"
    return f"{folder} holds the weights of {name}, a module that only its own code can make: {remedy}"
