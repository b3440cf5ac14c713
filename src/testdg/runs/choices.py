"""What a user can choose about a run: each choice once, for options of commands and for grids of runs alike.

A new choice is a line here and a field of `experiments.grid.Cell` (or of a benchmark's `Options`).
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple

Fits = Callable[[Any], bool]


class Choice(NamedTuple):
    """A value, the help of its option, and what it may be in a grid."""

    help: str
    fits: Fits
    rule: str
    of: Literal["axis", "run", "benchmark"] = "run"
    """An axis of a grid may be a list, each of which is run; the others may differ from benchmark to benchmark."""
    type: type = str
    metavar: str | None = None
    commas: bool = False
    """Whether the option takes several, separated by commas."""
    plural: bool = False
    """Whether the option has a second name in the plural."""


def is_text(value: Any) -> bool:
    """A text with something in it."""
    return isinstance(value, str) and value.strip() != ""


def is_whole(low: int, high: float = math.inf) -> Fits:
    """A whole number of at least `low` and at most `high`."""
    return lambda value: type(value) is int and low <= value <= high


def is_list(fits: Fits) -> Fits:
    """A list of values that fit."""
    return lambda value: isinstance(value, list | tuple) and len(value) > 0 and all(fits(item) for item in value)


def one_or_more(fits: Fits) -> Fits:
    """A value that fits, or a list of such."""
    return lambda value: fits(value) or is_list(fits)(value)


def _names(help: str) -> Choice:
    return Choice(help, one_or_more(is_text), "a name or a list of names", "axis", commas=True, plural=True)


def _text(help: str, metavar: str | None = None, of: Literal["run", "benchmark"] = "run") -> Choice:
    return Choice(help, is_text, "a text that is not empty", of, metavar=metavar)


def _one_of(help: str, choices: Collection[str]) -> Choice:
    return Choice(help, lambda value: isinstance(value, str) and value in choices, f"one of {', '.join(choices)}")


def _count(help: str, of: Literal["run", "benchmark"]) -> Choice:
    return Choice(help, is_whole(1), "a whole number of at least 1", of, int)


def _switch(help: str, of: Literal["run", "benchmark"]) -> Choice:
    return Choice(help, lambda value: isinstance(value, bool), "true or false", of, bool)


CHOICES: Mapping[str, Choice] = {
    "benchmark": _names("Benchmark (of a grid, several with commas); see `testdg benchmarks`."),
    "method": _names("Method, or several separated by commas; see `testdg methods`."),
    "protocol": _names(
        "continual, held-out, leave-one-out, gradual, cyclic, mixed, dirichlet, orders, order-0 to order-9, or a TOML "
        "file; options follow as in cyclic,rounds=5. If left out: continual, or cyclic for segmentation."
    ),
    "seeds": Choice(
        "Seed of the method's random numbers (0); of a grid, several with commas.",
        one_or_more(is_whole(0)),
        "a whole number of at least 0 or a list of them",
        "axis",
        commas=True,
        plural=True,
    ),
    "model": _text("Model: a folder or a hub id; the benchmark's own if left out."),
    "data": _text("Folder of the benchmark's data."),
    "preset": _text(
        "Published settings of a benchmark, see `testdg methods METHOD`, or none; an embedded benchmark applies its "
        "own if left out.",
        "NAME",
    ),
    "tuned": _text("Settings that `testdg tune` chose, for the methods in it.", "FILE"),
    "source": _text("Clean images to align to; the benchmark's training images if left out.", "FOLDER"),
    "guard": _switch("Learn only from what is worth it, and undo what harms the model.", "run"),
    "device": _one_of("auto, cpu, cuda or mps (auto).", ("auto", "cpu", "cuda", "mps")),
    "batch_size": _count("Images per batch; the benchmark's own if left out.", "run"),
    "precision": _one_of("fp32 or bf16 (fp32).", ("fp32", "bf16")),
    "images": _count(
        "Images of each domain, of files spread over the classes; if left out, all (tune 4000, leaderboard 2000).",
        "benchmark",
    ),
    "severity": Choice(
        "Severity of the corruptions, 1 to 5 (5).", is_whole(1, 5), "a whole number from 1 to 5", "benchmark", int
    ),
    "domains": Choice(
        "Domains in order, separated by commas.", is_list(is_text), "a list of names", "benchmark", commas=True
    ),
    "subset": _text(
        "Of a set of image files: all (as if left out), first:N of each class, or a list.", "WHICH", "benchmark"
    ),
    "skip_unreadable": _switch("Leave out and count image files that cannot be decoded.", "benchmark"),
    "preprocessing": _one_of(
        "model (size, mean and deviation of the model, as if left out) or paper (those of its tables).",
        ("model", "paper"),
    ),
    "corruption_seed": Choice(
        "Seed of the corruptions, and of the order of image-folder.",
        is_whole(0),
        "a whole number of at least 0",
        "benchmark",
        int,
    ),
    "workers": _count("Processes that decode image files; one per core, at most 16, if left out.", "benchmark"),
}


def option_name(key: str) -> str:
    """How the option of a choice is written."""
    return f"--{key.removesuffix('s') if CHOICES[key].plural else key}".replace("_", "-")


def choices_of(kind: str) -> dict[str, Choice]:
    """The choices of an axis, of a run, or of a benchmark."""
    return {key: choice for key, choice in CHOICES.items() if choice.of == kind}


def split(key: str, text: str) -> list[Any]:
    """Parts between commas; options of a protocol stay with its name, and seeds become numbers."""
    parts: list[Any] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        if key == "protocol" and "=" in part and parts:
            parts[-1] += f",{part}"
        else:
            parts.append(int(part) if key == "seeds" and part.isdecimal() else part)
    return parts


def chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values that options give; those that were left out are not among them."""
    given = {key: value for key, value in options.items() if value is not None and value is not False}
    return {key: split(key, value) if CHOICES[key].commas else value for key, value in given.items()}
