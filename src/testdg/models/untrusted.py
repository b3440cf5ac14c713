"""Model folders from strangers: what they hold is looked at before a network of that size is made.

A network is first made on the meta device, where it takes no memory, and counted as it grows: it must be about as large
as the weights beside it. One image without pixels is sent through it, so that sizes, heads and widths that do not fit
are told.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from testdg.bounds import check_file, read_json
from testdg.errors import UserError
from testdg.models.preprocessing import Preprocessing

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
MOST_NUMBER = 1_000_000
"""Largest whole number in a configuration; most are widths, depths and sides."""
MOST_LISTED = 16_384
"""Largest whole number in a list: depths and widths of stages."""
MOST_LENGTH = 256
_ADAPTER = "adapter_config.json"  # of peft: it names another model, which would be loaded in place of this one
_SHARDED = "shard-*.safetensors"  # of a distributed checkpoint
_ELSEWHERE = ("quantization_config", "transformers_weights", "configuration_files", "kernel_config")
_ATTENTION = (None, "eager", "sdpa")  # others are code that is fetched


class Budget(NamedTuple):
    """How many parameters a network may have, and how many numbers in all."""

    tensors: int
    elements: int


UNKNOWN = Budget(20_000, 4_000_000_000)
"""That of weights which are not there yet."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of a model; kinds and numbers that no network has are refused, and code from elsewhere."""
    place = folder / CONFIG
    try:
        config = read_json(place)
        if not isinstance(config, dict):
            raise TypeError(f"it holds a {type(config).__name__}")
    except (OSError, ValueError, TypeError) as error:
        reason = f" ({error})" if type(error) is ValueError else ""
        told = f"{folder} has no readable config.json{reason}, so its architecture is unknown"
        raise UserError(f"{told}: build the module yourself and pass it, or add a config.json") from error
    if not isinstance(config.get("model_type", ""), str):
        raise UserError(f"{place}: model_type must be a text; got {_short(config['model_type'])}")
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise UserError(f"{place}: architectures must be a list of texts; got {_short(names)}")
    try:
        _check_values(config, place)
    except RecursionError:
        raise UserError(f"{place} is nested too deeply: write it again") from None
    return config


def _check_values(values: Mapping[str, Any], place: Path) -> None:
    for key, value in values.items():
        if key in _ELSEWHERE and value is not None:
            raise UserError(f"{place} asks for {key}, which is not followed: save the plain model without it")
        if "attn_implementation" in key and (not isinstance(value, str | None) or value not in _ATTENTION):
            raise UserError(f"{place} asks for the attention {_short(value)}, which is not fetched: leave {key} out")
        _check_value(key, value, MOST_NUMBER, place)


def _check_value(key: str, value: Any, most: int, place: Path) -> None:
    name = ascii(key[:60])[1:-1][:60]  # fit for a terminal; a key may have millions of letters
    if isinstance(value, Mapping):
        _check_values(value, place)
    elif isinstance(value, list):
        if len(value) > MOST_LENGTH and any(isinstance(one, int | float) for one in value):
            raise UserError(f"{place}: {name} has {len(value)} values: expected at most {MOST_LENGTH}")
        for one in value:
            _check_value(key, one, MOST_LISTED, place)
    elif isinstance(value, int) and not -most <= value <= most:
        raise UserError(f"{place}: {name} is {_short(value)}: expected at most {most}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{place}: {name} is {value}: expected a finite number")


def _short(value: Any) -> str:
    """A value from a file in a few letters; numbers of thousands of digits have no text."""
    try:
        return ascii(value)[:60]
    except (ValueError, RecursionError):
        return "a value without end"


def find_weights(folder: Path) -> list[Path]:
    """The safetensors files of a model folder; pickles, pipes, devices and files elsewhere are refused."""
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors") and path.exists() and not path.is_file():
            raise UserError(f"{path} is no ordinary file: put a file in its place")
    for path in sorted([*folder.glob(_ADAPTER), *folder.glob(_SHARDED)]):
        raise UserError(f"{path} leads to weights in other places or forms: save the whole model as {WEIGHTS}")
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        return _indexed(folder)
    pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{folder} holds its weights only as a pickle ({pickles[0]}), which can execute code: "
            "convert it to model.safetensors first"
        )
    raise UserError(f"{folder} holds no weights: expected model.safetensors")


def _indexed(folder: Path) -> list[Path]:
    """The files that an index names, all of them safetensors in the same folder."""
    try:
        files = set(read_json(folder / INDEX)["weight_map"].values())
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder / INDEX} is damaged ({type(error).__name__} {error}): save the model again"
        ) from error
    for name in files:
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
            raise UserError(f"{folder / INDEX} names {_short(name)}: expected safetensors files of the same folder")
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: {INDEX} names it")
    if not files:
        raise UserError(f"{folder / INDEX} names no weights: save the model again")
    return sorted(folder / name for name in files)


def budget_of(files: list[Path]) -> Budget:
    """What a network may have that these weights belong to: twice as much, and a little; only headers are read."""
    tensors = elements = 0
    for path in files:
        try:
            check_file(path)
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118
                    tensors, elements = tensors + 1, elements + math.prod(file.get_slice(name).get_shape())
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    return Budget(2 * tensors + 100, 2 * elements + 1_000_000)


class _TooLarge(Exception):
    """A network grows beyond its budget."""


@contextmanager
def _within(budget: Budget) -> Iterator[None]:
    """Count the parameters that this thread makes, and stop where there are too many."""
    here, tensors, elements = threading.get_ident(), 0, 0

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal tensors, elements
        if parameter is not None and threading.get_ident() == here:
            tensors, elements = tensors + 1, elements + parameter.numel()
            if tensors > budget.tensors or elements > budget.elements:
                raise _TooLarge

    with nn.modules.module.register_module_parameter_registration_hook(count):
        yield


def sketch(make: Callable[[], nn.Module], budget: Budget, place: str) -> nn.Module | None:
    """A network without memory for its weights; None where it cannot be made so, which harms nobody."""
    try:
        with torch.device("meta"), _within(budget):
            return make().eval()
    except _TooLarge as error:
        raise UserError(f"{place}: config.json describes a far larger network than the weights beside it") from error
    except NotImplementedError:
        return None


def check_sketch(network: nn.Module | None, preprocessing: Preprocessing, side: Any, place: str) -> None:
    """Send an image without pixels through a network on the meta device; tell what does not fit.

    The network's own `side` counts where images come as they are; where no size is known, nothing is sent.
    """
    edge = preprocessing.size if isinstance(preprocessing.size, int) else side
    size = preprocessing.input_size or ((edge, edge) if isinstance(edge, int) else None)
    if network is None or size is None:
        return
    try:
        with torch.no_grad():
            network(torch.empty(1, len(preprocessing.mean), *size, device="meta"))
    except (RuntimeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, NotImplementedError) or "meta" in str(error):
            return  # a network that cannot be tried so
        raise UserError(f"{place} cannot take images of {size[0]} x {size[1]}: {first_line(error)}") from error


def require_finite(model: nn.Module, place: str) -> None:
    """Refuse weights that are not finite: whatever they predict is no prediction."""
    for name, value in model.state_dict().items():
        if value.is_floating_point() and value.numel() and not all(map(math.isfinite, torch.aminmax(value))):
            raise UserError(f"{place}: the weights {name} are not finite: the model is damaged, take another")


def first_line(error: BaseException) -> str:
    """The first line of an error, fit for a terminal."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return line if line.isprintable() else ascii(line)[1:-1]
