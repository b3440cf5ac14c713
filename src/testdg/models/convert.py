"""Checkpoints of other projects become model folders."""

from pathlib import Path

from safetensors.torch import save_file

from testdg.errors import UserError
from testdg.files import writing
from testdg.models.checkpoints import Fitted, load_fitting, read_checkpoint, timm_network, with_classes_of
from testdg.models.loading import load_model
from testdg.models.model import VisionModel

BRANCHES = "branches.safetensors"


def convert(file: Path, out: Path, *, timm: str | None = None, like: str | None = None) -> tuple[VisionModel, Fitted]:
    """Write the weights of a checkpoint as a model folder; branches parallel to layers get their own file.

    The network is one of timm by its name, or of the kind of another model, folder or hub id. Returns the model, and
    where each tensor of the checkpoint was put.
    """
    if (timm is None) == (like is None):
        raise UserError("name the network: either --timm NAME, or --like FOLDER", code="option-conflict")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} exists already: choose another --out, or delete it", code="folder-exists")
    if not file.is_file():
        raise UserError(f"{file} does not exist", code="no-such-file")
    given = read_checkpoint(file)
    model = timm_network(timm, given) if timm is not None else with_classes_of(given, load_model(str(like)))
    fitted = load_fitting(given, model.network, str(file), model.name)
    with writing(out):
        model.save(out)
        if fitted.branches:
            save_file({name: value.clone().contiguous() for name, value in fitted.branches.items()}, out / BRANCHES)
    return model, fitted
