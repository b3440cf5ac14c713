"""Any network becomes a `VisionModel`; weights of networks that only their user can make find their place in them."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models import timm_models
from testdg.models.checkpoints import fit_weights, load_fitting, read_checkpoint
from testdg.models.heads import find_head
from testdg.models.model import VisionModel
from testdg.models.preprocessing import Preprocessing, nobody_said, read_preprocessor
from testdg.models.segformer import SegmentationModel
from testdg.models.transfer import with_classes
from testdg.models.untrusted import CONFIG, find_weights, read_config


def wrap(network: nn.Module, preprocessing: Preprocessing, head: str | None, name: str) -> VisionModel:
    """See a network as encoder + head; a SegFormer for segmentation is told by its parts."""
    if hasattr(network, "segformer") and hasattr(network, "decode_head"):
        return SegmentationModel(network, head or "decode_head.classifier", preprocessing, name).eval()
    found = find_head(network.eval(), preprocessing, name, head)
    model = VisionModel(network, found.name, preprocessing, name, classes=found.classes, exact=found.exact)
    return model.eval()


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
    name = place.name if place.is_dir() else place.stem
    model = wrap(network, preprocessing or _preprocessing(place, network, name), head or config.get("head"), name)
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


def _preprocessing(place: Path, network: nn.Module, name: str) -> Preprocessing:
    """What lies beside the weights, or what a network of timm brings; else nothing, and that is said."""
    found = read_preprocessor(place) if place.is_dir() else read_preprocessor(place.parent)
    if found is not None:
        return found
    if hasattr(network, "pretrained_cfg"):
        return timm_models.preprocessing_of(network)
    return nobody_said(name, stacklevel=6)


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
