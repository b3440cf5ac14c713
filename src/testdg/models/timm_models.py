"""Models of timm: by name, with published weights or with the weights of a folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from testdg.errors import UserError
from testdg.models import hub
from testdg.models.preprocessing import Preprocessing
from testdg.models.untrusted import first_line

MODEL_TYPE = "testdg-timm"
"""Their type in `config.json`."""


def make_network(name: str, *, pretrained: bool, **options: object) -> nn.Module:
    """A network of timm, with published weights or random ones."""
    try:
        import timm
    except ImportError as error:
        raise UserError(f"{name} needs timm: pip install 'testdg[timm]'", code="not-installed") from error
    except (RuntimeError, AttributeError) as error:
        problem = misfit(f"{name} needs timm, which cannot be imported", error)
        raise UserError(problem, code="not-installed") from error
    short = name.removeprefix("timm:")
    away = pretrained and not hub.reachable()
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[], enabled=not pretrained), hub.offline(away):
            full = f"hf-hub:{short}" if short.startswith("timm/") else short
            return timm.create_model(full, pretrained=pretrained, **options)  # type: ignore[no-any-return]
    except Exception as error:  # timm and the hub raise many kinds
        missing = away and isinstance(error, FileNotFoundError)
        reason = "its weights are not cached, and the hub cannot be reached" if missing else first_line(error)
        raise UserError(f"timm could not load {short!r}: {reason}", code="no-model") from error


def misfit(problem: str, error: BaseException) -> str:
    """Describe a failed import; the usual cause is a torchvision that was built for another torch."""
    reason = first_line(error)
    if "torchvision" in str(error):
        return f"{problem}: torchvision does not fit torch {torch.__version__} ({reason}): install the matching one"
    return f"{problem}: {reason}"


def preprocessing_of(network: nn.Module) -> Preprocessing:
    """Read size, resample, mean and standard deviation from a timm model's configuration."""
    config: Any = network.pretrained_cfg
    height, width = config["input_size"][1:]
    edge = round(min(height, width) / float(config.get("crop_pct") or 1.0))
    return Preprocessing(
        edge, (height, width), config.get("interpolation", "bicubic"), tuple(config["mean"]), tuple(config["std"])
    )


def describe(network: nn.Module, classes: int) -> dict[str, object] | None:
    """What `config.json` needs to make a network of timm again; None for other networks."""
    config: Any = getattr(network, "pretrained_cfg", None)
    if not type(network).__module__.startswith("timm.") or not config:
        return None
    patches: Any = getattr(network, "patch_embed", None)
    size = {"img_size": list(patches.img_size)} if getattr(patches, "img_size", None) else {}
    return {"model_type": MODEL_TYPE, "architecture": config["architecture"], "num_classes": classes, **size}


def network_of(folder: Path, config: Mapping[str, object]) -> nn.Module:
    """The network of a folder, with random weights."""
    name, classes, size = (config.get(key) for key in ("architecture", "num_classes", "img_size"))
    if not isinstance(name, str) or not name.isidentifier() or type(classes) is not int:
        lacks = "has no architecture of timm with a number of classes"
        raise UserError(f"{folder / 'config.json'} {lacks}", code="bad-config")
    if size is not None and not (isinstance(size, list) and all(type(side) is int for side in size)):
        wrong = f"img_size must be two whole numbers; got {ascii(size)[:60]}"
        raise UserError(f"{folder / 'config.json'}: {wrong}", code="bad-config")
    options = {} if size is None else {"img_size": tuple(size)}
    return make_network(f"timm:{name}", pretrained=False, num_classes=classes, **options)


def resized(network: nn.Module, classes: int, size: int) -> nn.Module | None:
    """A network of the same kind for images of another size, with random weights; None if it accepts any size."""
    about = describe(network, classes)
    if about is None or "img_size" not in about:
        return None
    name = f"timm:{about['architecture']}"
    return make_network(name, pretrained=False, num_classes=classes, img_size=size)
