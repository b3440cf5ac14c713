"""Model folders from unknown sources are checked before a network of their size is allocated.

The network is first built on the meta device, where it takes no memory. Its parameters are counted while they are made:
there must not be many more than in the weights next to it. Then an image on the meta device, which has a shape but no
pixels, is passed through the network. This reveals sizes, heads and widths that do not fit.
"""

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from testdg.bounds import check_file, read_json
from testdg.errors import UserError
from testdg.models.blocks import config_of, tensors_of
from testdg.models.preprocessing import Preprocessing

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
MOST_NUMBER = 1_000_000
"""Largest whole number in a configuration, such as a width or a number of classes. Counting parameters is not enough:
transformers makes a table of class names before it makes the network."""
MOST_LISTED = 16_384
"""Largest whole number in a list: depths and widths of stages."""
MOST_LENGTH = 256
_ADAPTER = "adapter_config.json"  # of peft: it names another model, which would be loaded instead
_SHARDED = "shard-*.safetensors"  # of a distributed checkpoint
# Keys that make transformers import a library, read another file than the one that was checked, or fetch code.
_ELSEWHERE = ("quantization_config", "transformers_weights", "configuration_files", "kernel_config")
_ATTENTION = (None, "eager", "sdpa")  # others are code that is fetched
_ANY_SIDE = 64  # of an image for networks that take any size


class Budget(NamedTuple):
    """How many parameters a network may have, and how many numbers in all."""

    tensors: int
    elements: int


UNKNOWN = Budget(20_000, 4_000_000_000)
"""Budget for weights that are not downloaded yet."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of a model; impossible types and numbers are refused, and so is code that it refers to."""
    path = folder / CONFIG
    try:
        config = read_json(path)
        if not isinstance(config, dict):
            raise TypeError(f"it contains a {type(config).__name__}")
    except (OSError, ValueError, TypeError) as error:
        reason = f" ({error})" if type(error) is ValueError else ""
        problem = f"{folder} has no readable config.json{reason}, so its architecture is unknown"
        remedy = "build the module yourself and pass it, or add a config.json"
        raise UserError(f"{problem}: {remedy}", code="no-config") from error
    try:
        if not isinstance(config.get("model_type", ""), str):
            raise _refused(path, "model_type must be a text; got", config["model_type"])
        names = config.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _refused(path, "architectures must be a list of texts; got", names)
        _check_value("", config, MOST_NUMBER, path)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply: save it again", code="bad-config") from None
    return config


def _check_value(key: str, value: object, most: int, path: Path) -> None:
    """Check one entry of a configuration, and the entries of tables and lists in it."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            if name in _ELSEWHERE and one is not None:
                raise _refused(path, "save the plain model, without the unsupported", name)
            if "attn_implementation" in name and one not in _ATTENTION:
                raise _refused(path, f"leave {name} out; this attention is not supported:", one)
            _check_value(name, one, MOST_NUMBER, path)
        return
    name = ascii(key[:60])[1:-1][:60]  # printable; a key may have millions of letters
    if isinstance(value, list):
        if len(value) > MOST_LENGTH and any(isinstance(one, int | float) for one in value):
            raise _refused(path, f"{name} must have at most {MOST_LENGTH} values; got", len(value))
        for one in value:
            _check_value(key, one, MOST_LISTED, path)
    elif isinstance(value, int) and not -most <= value <= most:
        raise _refused(path, f"{name} must be at most {most}; got", value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _refused(path, f"{name} must be finite; got", value)


def _refused(path: Path, rule: str, value: object) -> UserError:
    return UserError(f"{path}: {rule} {ascii(value)[:60]}", code="bad-config")


def find_weights(folder: Path) -> list[Path]:
    """The safetensors files of a model folder; pickles, pipes, devices and files in other folders are refused."""
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors") and path.exists() and not path.is_file():
            raise UserError(f"{path} is not a regular file", code="not-a-file")
    for path in sorted([*folder.glob(_ADAPTER), *folder.glob(_SHARDED)]):
        elsewhere = f"{path} refers to weights in other places or formats"
        raise UserError(f"{elsewhere}: save the whole model as {WEIGHTS}", code="no-weights")
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        return _indexed(folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickles:
        pickled = f"{folder} has its weights only as a pickle ({pickles[0]}), which can execute code"
        raise UserError(f"{pickled}: convert it to model.safetensors first", code="pickled-weights")
    raise UserError(f"{folder} has no weights: expected model.safetensors", code="no-weights")


def _indexed(folder: Path) -> list[Path]:
    """The safetensors files that an index names; they must be in the same folder."""
    try:
        files = set(read_json(folder / INDEX)["weight_map"].values())
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__} {error}"
        raise UserError(f"{folder / INDEX} is damaged ({reason})", code="damaged-model") from error
    for name in files:
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
            wrong = f"{folder / INDEX} names {ascii(name)[:60]}"
            raise UserError(f"{wrong}: expected safetensors files of the same folder", code="damaged-model")
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: {INDEX} names it", code="no-weights")
    if not files:
        raise UserError(f"{folder / INDEX} names no weights", code="no-weights")
    return sorted(folder / name for name in files)


def budget_of(files: list[Path]) -> Budget:
    """Budget for a network with these weights: twice their size and a little more. Only file headers are read."""
    tensors = elements = 0
    for path in files:
        try:
            check_file(path)
            with safe_open(path, "pt") as file:
                sizes = [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118
            tensors, elements = tensors + len(sizes), elements + sum(sizes)
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(f"{path} cannot be read: {first_line(error)}", code="damaged-model") from error
    return Budget(2 * tensors + 100, 2 * elements + 1_000_000)


class _TooLarge(Exception):
    """A network grows beyond its budget."""


def check_network(make: Callable[[], nn.Module], preprocessing: Preprocessing, budget: Budget, place: str) -> None:
    """Check the size of a network while it is built on the meta device, and that it accepts an image.

    Parameters are counted as they are registered, so that a network is refused as soon as it is beyond its budget: even
    without memory for weights, a million layers would take minutes and gigabytes. A network that does not accept the
    image is refused, too. A network passes if it cannot run on the meta device, or if its image size is unknown.
    """
    thread, tensors, elements = threading.get_ident(), 0, 0

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal tensors, elements
        if parameter is not None and threading.get_ident() == thread:
            tensors, elements = tensors + 1, elements + parameter.numel()
            if tensors > budget.tensors or elements > budget.elements:
                raise _TooLarge

    try:
        with torch.device("meta"), nn.modules.module.register_module_parameter_registration_hook(count):
            network = make().eval()
    except _TooLarge as error:
        larger = "config.json describes a far larger network than the weights next to it"
        raise UserError(f"{place}: {larger}", code="bad-config") from error
    except NotImplementedError:
        return
    size = preprocessing.input_size or _own_size(network, preprocessing.size)
    if size is None:
        return
    try:
        with torch.no_grad():
            network(torch.empty(1, len(preprocessing.mean), *size, device="meta"))
    except (RuntimeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, NotImplementedError) or "meta" in str(error):
            return
        wrong = f"{place} cannot take images of {size[0]} x {size[1]}: {first_line(error)}"
        raise UserError(wrong, code="bad-config") from error


def _own_size(network: nn.Module, shortest: object) -> tuple[int, int] | None:
    """An image size to check a network with: the shortest edge, else its configuration's, else a default, or None."""
    config = config_of(network)
    if isinstance(shortest, int):
        side = shortest
    elif isinstance(config, dict):
        side = config.get("size", _ANY_SIDE)
    else:
        side = getattr(config, "image_size", _ANY_SIDE)
    return (side, side) if isinstance(side, int) else None


def require_finite(model: nn.Module, place: str) -> None:
    for name, value in tensors_of(model).items():
        if not value.is_floating_point() or not value.numel():
            continue
        if not all(map(math.isfinite, torch.aminmax(value))):
            raise UserError(f"{place}: the weights {name} are not finite", code="damaged-model")


def first_line(error: BaseException) -> str:
    """The first line of an error, printable."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return line if line.isprintable() else ascii(line)[1:-1]
