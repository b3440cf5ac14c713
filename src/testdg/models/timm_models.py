"""Models of timm: by name, with published weights or with those of a folder."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from testdg.errors import UserError
from testdg.models import hub
from testdg.models.preprocessing import Preprocessing
from testdg.models.untrusted import first_line

MODEL_TYPE = "testdg-timm"
"""What `config.json` calls them."""


def make_network(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
    """A network of timm, with published weights or random ones."""
    try:
        import timm
    except ImportError as error:
        raise UserError(f"{name} needs timm: pip install 'testdg[timm]'") from error
    except (RuntimeError, AttributeError) as error:
        raise UserError(misfit(f"{name} needs timm, which does not import", error)) from error
    short = name.removeprefix("timm:")
    away = pretrained and not hub.reachable()
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[], enabled=not pretrained), hub.offline(away):
            wanted = f"hf-hub:{short}" if short.startswith("timm/") else short
            return timm.create_model(wanted, pretrained=pretrained, **options)  # type: ignore[no-any-return]
    except Exception as error:  # timm and the hub raise many kinds
        missing = away and isinstance(error, FileNotFoundError)
        reason = "its weights are not here, and the hub cannot be reached" if missing else first_line(error)
        raise UserError(f"timm could not load {short!r}: {reason}") from error


def misfit(problem: str, error: BaseException) -> str:
    """A failed import in words: mostly a torchvision that was built for another torch."""
    reason = first_line(error)
    if "torchvision" in str(error):
        return f"{problem}: torchvision does not fit torch {torch.__version__} ({reason}): install the one that does"
    return f"{problem}: {reason}"


def preprocessing_of(network: nn.Module) -> Preprocessing:
    """Read size, resample, mean and standard deviation from a timm model's configuration."""
    config: Any = network.pretrained_cfg
    height, width = config["input_size"][1:]
    edge = round(min(height, width) / float(config.get("crop_pct") or 1.0))
    return Preprocessing(
        edge, (height, width), config.get("interpolation", "bicubic"), tuple(config["mean"]), tuple(config["std"])
    )


def describe(network: nn.Module, classes: int) -> dict[str, Any] | None:
    """What `config.json` says of a network of timm, so that it is made again; None for any other network."""
    config: Any = getattr(network, "pretrained_cfg", None)
    if not type(network).__module__.startswith("timm.") or not config:
        return None
    patches: Any = getattr(network, "patch_embed", None)
    size = {"img_size": list(patches.img_size)} if getattr(patches, "img_size", None) else {}
    return {"model_type": MODEL_TYPE, "architecture": config["architecture"], "num_classes": classes, **size}


def network_of(folder: Path, config: dict[str, Any]) -> nn.Module:
    """The network of a folder, still with random weights."""
    name, classes, size = (config.get(key) for key in ("architecture", "num_classes", "img_size"))
    if not isinstance(name, str) or not name.isidentifier() or type(classes) is not int:
        raise UserError(f"{folder / 'config.json'} names no architecture of timm with a number of classes")
    if size is not None and not (isinstance(size, list) and all(type(side) is int for side in size)):
        raise UserError(f"{folder / 'config.json'}: img_size must be two whole numbers; got {ascii(size)[:60]}")
    options = {} if size is None else {"img_size": tuple(size)}
    return make_network(f"timm:{name}", pretrained=False, num_classes=classes, **options)


def resized(network: nn.Module, classes: int, size: int) -> nn.Module | None:
    """A network of the same kind for images of another size, with random weights; None where size is no part of it."""
    about = describe(network, classes)
    if about is None or "img_size" not in about:
        return None
    name = f"timm:{about['architecture']}"
    return make_network(name, pretrained=False, num_classes=classes, img_size=size)
