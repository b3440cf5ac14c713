"""Weights without their network, as .pt, .pth or a folder: only tensors are read, and matched to a network by name."""

import copy
import pickle
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from testdg.bounds import check_file
from testdg.errors import UserError
from testdg.models import timm_models
from testdg.models.heads import wrap
from testdg.models.model import VisionModel
from testdg.models.preprocessing import Preprocessing, identity_with_warning, read_preprocessor
from testdg.models.resnet import CifarResNet
from testdg.models.transfer import with_classes
from testdg.models.untrusted import CONFIG, budget_of, find_weights, first_line, read_config

PICKLED = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_HOLDERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params", "ema", "state_dict_ema")
_WRAPPERS = ("module", "model", "_orig_mod", "network", "net", "encoder")
_BRANCH = ("down", "up", "lora", "adapter", "scale", "amp")
"""Parts of the names of branches parallel to a layer."""


class Fitted(NamedTuple):
    """Weights by the names of a network; branches parallel to its layers; names that it does not have."""

    weights: dict[str, Tensor]
    branches: dict[str, Tensor]
    unknown: list[str]


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a pickle with nothing else; no code in it is executed."""
    if path.suffix == ".safetensors":
        budget_of([path])  # checks that it is a regular file with a header
        weights = load_file(path)
    else:
        weights = _read_pickle(path)
    for name, value in weights.items():
        if kind := _unusual_kind(value):
            remedy = "save it as a dense tensor of real numbers, as with dequantize() or to_dense()"
            raise UserError(f"{path}: the tensor {name[:80]} is {kind}; {remedy}", code="wrong-weights")
    return weights  # type: ignore[no-any-return]


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        check_file(path)
        with torch.serialization.safe_globals([Namespace]):  # plain values: trainings store their options in one
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        unsafe = f"{path} contains more than tensors, which could execute code"
        raise UserError(f"{unsafe}: save only the state_dict() of the module", code="unsafe-pickle") from error
    except (OSError, ValueError, RuntimeError, EOFError, BadZipFile, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}", code="damaged-model") from error
    weights = _tensors(content)
    if not weights:
        raise UserError(f"{path} has no weights: expected tensors by name, as in state_dict()", code="no-weights")
    return weights


def _unusual_kind(value: Tensor) -> str | None:
    """Why a tensor cannot be a weight; None if it can. Copying one of these into a network fails or drops data."""
    if value.is_meta:
        return "without data (on the meta device)"
    if value.is_quantized:
        return "quantised"
    if value.is_nested or value.layout is not torch.strided:
        return "sparse or nested"
    return "complex" if value.is_complex() else None


def _tensors(content: object) -> dict[str, Tensor]:
    """The tensors by name, in any of the places where training scripts store them."""
    if not isinstance(content, Mapping):
        return {}
    for key in _HOLDERS:
        if isinstance(content.get(key), Mapping) and (inner := _tensors(content[key])):
            return inner
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def fit_weights(given: Mapping[str, Tensor], network: nn.Module) -> Fitted:
    """Match tensors to a network by name, whatever wrapped the network when they were saved."""
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
    """A name without the prefixes of wrappers."""
    own = name
    while own not in expected and _layer_of(own, expected) is None:
        first, _, rest = own.partition(".")
        if first not in _WRAPPERS or not rest:
            return name
        own = rest
    return own


def _layer_of(name: str, expected: Mapping[str, Tensor]) -> str | None:
    """The layer of a network that is a prefix of a name: `blocks.0.attn.qkv` of `blocks.0.attn.qkv.down.weight`."""
    parts = name.split(".")
    layers = (".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
    return next((layer for layer in layers if f"{layer}.weight" in expected), None)


def load_fitting(given: Mapping[str, Tensor], network: nn.Module, place: str, name: str) -> Fitted:
    """Load tensors into a network; missing tensors and other shapes are refused."""
    fitted, expected = fit_weights(given, network), network.state_dict()
    required = [own for own in expected if not own.endswith("num_batches_tracked")]
    if missing := [own for own in required if own not in fitted.weights]:
        unknown = f" and has the unknown {fitted.unknown[0]}" if fitted.unknown else ""
        raise UserError(f"{place} does not fit {name}: it lacks {_some(missing)}{unknown}", code="wrong-weights")
    wrong = [own for own, value in fitted.weights.items() if value.shape != expected[own].shape]
    if wrong:
        shapes = f"{tuple(fitted.weights[wrong[0]].shape)}, not {tuple(expected[wrong[0]].shape)}"
        other = f"{_some(wrong)} of another shape ({shapes})"
        raise UserError(f"{place} does not fit {name}: {other}", code="wrong-weights")
    with torch.no_grad():
        network.load_state_dict(fitted.weights, strict=False)
    return fitted


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def load_strictly(given: Mapping[str, Tensor], network: nn.Module, place: str, name: str) -> None:
    """Load tensors into a network that has exactly these, whatever wrapped it when they were saved."""
    fitted = load_fitting(given, network, place, name)
    if more := [*fitted.unknown, *fitted.branches]:
        unknown = f"{len(more)} tensors that {type(network).__name__} does not have, first {more[0]}"
        raise UserError(f"{place} has {unknown}", code="wrong-weights")


def resnet_from_weights(weights: Mapping[str, Tensor], place: str) -> CifarResNet:
    """Make the CIFAR ResNet of some weights; depth, width and classes are read from them."""
    if not {"conv1.weight", "layer1.0.conv1.weight", "linear.weight"} <= weights.keys():
        problem = f"{place} is not a CIFAR ResNet (conv1, bn1, layer1 to layer3, linear)"
        raise UserError(f"{problem}: other models need a folder with config.json", code="no-network")
    blocks = len({name.split(".")[1] for name in weights if name.startswith("layer1.")})
    network = CifarResNet(weights["linear.weight"].shape[0], 6 * blocks + 2, weights["conv1.weight"].shape[0])
    load_strictly(weights, network, place, "a CIFAR ResNet")
    return network


def load_into(
    module: nn.Module | str, place: Path, preprocessing: Preprocessing | None, head: str | None
) -> VisionModel:
    """Load the weights of a folder or a file into a copy of a module, or into a network of timm."""
    config = read_config(place) if (place / CONFIG).is_file() else {}
    weights = find_weights(place)[0] if place.is_dir() else place
    given = read_checkpoint(weights)
    own = module if isinstance(module, nn.Module) else timm_network(module, given).network
    network = copy.deepcopy(own).float()
    load_strictly(given, network, str(weights), type(network).__name__)
    name, folder = (place.name, place) if place.is_dir() else (place.stem, place.parent)
    preprocessing = preprocessing or read_preprocessor(folder)
    if preprocessing is None and hasattr(network, "pretrained_cfg"):
        preprocessing = timm_models.preprocessing_of(network)
    preprocessing = preprocessing or identity_with_warning(name, stacklevel=5)
    model = wrap(network, preprocessing, head or config.get("head"), name)
    if isinstance(config.get("classes"), list):
        model.name_classes([str(label) for label in config["classes"]])
    return model


def timm_network(name: str, weights: Mapping[str, Tensor]) -> VisionModel:
    """A network of timm with random weights, and as many classes as some weights have."""
    name = f"timm:{name.removeprefix('timm:')}"
    network = timm_models.make_network(name, pretrained=False)
    return with_classes_of(weights, wrap(network, timm_models.preprocessing_of(network), None, name))


def with_classes_of(weights: Mapping[str, Tensor], model: VisionModel) -> VisionModel:
    """The model with as many classes as the classifier of a checkpoint has."""
    rows = fit_weights(weights, model.network).weights.get(f"{model.head}.weight")
    if rows is None or len(rows) == model.classes:
        return model
    return with_classes(model, [str(number) for number in range(len(rows))]).eval()


def without_network(place: Path, problem: str, module: str = "...", also: str = "") -> UserError:
    """The error for weights whose network is unknown, with the ways to use them."""
    own = f"load_model({str(place)!r}, module={module}) in Python, or in a --plugin FILE.py for commands"
    return UserError(f"{place} has {problem}: {also}{own}", code="no-network")
