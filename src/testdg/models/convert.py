"""Checkpoints of others become model folders."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from testdg.errors import UserError
from testdg.files import writing
from testdg.models import timm_models
from testdg.models.checkpoints import Fitted, fit_weights, load_fitting, read_checkpoint
from testdg.models.loading import load_model
from testdg.models.model import VisionModel
from testdg.models.transfer import with_classes
from testdg.models.wrapping import wrap

BRANCHES = "branches.safetensors"


class Converted(NamedTuple):
    """The model, and what of the checkpoint lies beside it or nowhere."""

    model: VisionModel
    branches: int
    unknown: list[str]


def convert(file: Path, out: Path, *, timm: str | None = None, like: str | None = None) -> Converted:
    """Write the weights of a checkpoint as a model folder; branches beside layers are kept in a file of their own.

    The network is one of timm by its name, or of the kind of another model, folder or hub id.
    """
    if (timm is None) == (like is None):
        raise UserError("name the network of the weights: --timm NAME, or --like FOLDER for the kind of another model")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} exists already: choose another --out, or delete it")
    if not file.is_file():
        raise UserError(f"{file} does not exist")
    given = read_checkpoint(file)
    model = _with_classes_of(given, _timm(timm) if timm is not None else load_model(str(like)))
    fitted = load_fitting(given, model.network, str(file), model.name)
    with writing(out):
        model.save(out)
        _keep_branches(fitted, out)
    return Converted(model, len(fitted.branches), fitted.unknown)


def _timm(name: str) -> VisionModel:
    name = f"timm:{name.removeprefix('timm:')}"
    network = timm_models.make_network(name, pretrained=False)
    return wrap(network, timm_models.preprocessing_of(network), None, name)


def _with_classes_of(given: dict[str, Tensor], model: VisionModel) -> VisionModel:
    """The model with as many classes as the classifier of a checkpoint has."""
    rows = fit_weights(given, model.network).weights.get(f"{model.head}.weight")
    if rows is None or len(rows) == model.classes:
        return model
    return with_classes(model, [str(number) for number in range(len(rows))]).eval()


def _keep_branches(fitted: Fitted, out: Path) -> None:
    from safetensors.torch import save_file

    if fitted.branches:
        save_file({name: value.clone().contiguous() for name, value in fitted.branches.items()}, out / BRANCHES)
