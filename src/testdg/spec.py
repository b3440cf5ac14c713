"""RunSpec: one run as a value. Every choice of a user is a field; options, grids and checks are derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta, Struct

from testdg.schema import Name, field_types

SOURCE = "source"
"""The method that is the baseline of every comparison."""
Count = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Severity = Annotated[int, Meta(ge=1, le=5)]
Domains = Annotated[tuple[Name, ...], Meta(min_length=1)]
Scope = Literal["axis", "run", "benchmark"]
"""axis: a grid may list several values. run: one value per run. benchmark: an option of `load_benchmark`."""


def _declare(scope: Scope, help: str, **extra: Any) -> Meta:
    """Attach a help text and the properties in `Choice` to a field."""
    return Meta(description=help, extra={"scope": scope, **extra})


_axis, _run, _data = (partial(_declare, scope) for scope in get_args(Scope))


class RunSpec(Struct, frozen=True, kw_only=True):
    """Everything that one run depends on, as plain values that can be hashed, compared, written and sent.

    To add a choice, add one field here and the code that uses it. `expand` fills in the fields without a description.
    """

    benchmark: Annotated[Name, _axis("Benchmark, or several in a grid; see `testdg benchmarks`.")] = "digits-c"
    method: Annotated[Name, _axis("Method, or several separated by commas; see `testdg methods`.")] = "testdg_aligned"
    protocol: Annotated[
        Name | None,
        _axis(
            "continual, held-out, leave-one-out, gradual, cyclic, mixed, dirichlet, orders, order-0 to order-9, or a "
            "TOML file. Add options after commas: cyclic,rounds=5. If left out: continual, or cyclic for segmentation."
        ),
    ] = None
    seed: Annotated[Seed, _axis("Seed of the method's random numbers (0), or several in a grid.", key="seeds")] = 0
    model: Annotated[Name | None, _run("Model: a folder or a hub id; the benchmark's own if left out.")] = None
    data: Annotated[Name | None, _run("Folder of the benchmark's data.")] = None
    preset: Annotated[
        Name | None,
        _run(
            "Published settings to use, or none; `testdg methods METHOD` lists them. If left out, an embedded "
            "benchmark uses its own.",
            metavar="NAME",
        ),
    ] = None
    tuned: Annotated[Name | None, _run("File of the settings that `testdg tune` chose.", metavar="FILE")] = None
    source: Annotated[
        Name | None, _run("Clean images to align to; the benchmark's training images if left out.", metavar="FOLDER")
    ] = None
    guard: Annotated[bool, _run("Skip useless images, and undo steps that harm the model.")] = False
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], _run("auto, cpu, cuda or mps (auto).")] = "auto"
    batch_size: Annotated[Count | None, _run("Images per batch; the benchmark's own if left out.")] = None
    precision: Annotated[Literal["fp32", "bf16"], _run("fp32 or bf16 (fp32).")] = "fp32"
    images: Annotated[
        Count | None,
        _data("Images per domain, spread over the classes; all if left out (tune 4000, leaderboard 2000)."),
    ] = None
    severity: Annotated[Severity | None, _data("Severity of the corruptions, 1 to 5 (5).")] = None
    domains: Annotated[Domains | None, _data("Domains in order, separated by commas.")] = None
    subset: Annotated[
        Name | None,
        _data("Image files to use: all (the default), first:N of each class, or a list file.", metavar="WHICH"),
    ] = None
    skip_unreadable: Annotated[bool, _data("Leave out and count image files that cannot be decoded.")] = False
    preprocessing: Annotated[
        Literal["model", "paper"],
        _run("model (the default: the model's own size, mean and deviation) or paper (those that the paper used)."),
    ] = "model"
    corruption_seed: Annotated[
        Annotated[int, Meta(ge=0)] | None, _data("Seed of the corruptions, and of the image order of image-folder.")
    ] = None
    workers: Annotated[
        Count | None, _data("Threads that decode image files; if left out, one per core, at most 16.")
    ] = None
    save_every: Annotated[Annotated[float, Meta(ge=0)], _run("Seconds between two saved states of a run (60).")] = 60.0

    settings: dict[str, Any] = {}
    """Settings of the method; they override those of the preset."""
    name: str = ""
    """The row of a table that the run belongs to."""
    chosen_in: dict[str, str] = {}
    """Settings that `testdg tune` chose: for each, the name of the file that it was read from."""
    stream: Any = None
    """The `Protocol` of this run. A protocol such as leave-one-out expands to several runs, each with its own. (The
    type is not declared because it needs torch: help texts must appear without loading it.)"""
    batches: int = 0
    """Length of the stream."""
    track: str | None = None
    """A program that receives the numbers of every batch, such as tensorboard."""

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self, order="deterministic"))

    def __str__(self) -> str:
        order = None if self.stream is None else self.stream.order
        numbered = f", order {order}" if isinstance(order, int) else ""
        seed = "" if self.method == SOURCE else f", seed {self.seed}"
        return f"{self.name}, {self.benchmark}, {self.protocol}{numbered}{seed}"

    @property
    def options(self) -> dict[str, Any]:
        """The chosen options of the benchmark."""
        values = {key: getattr(self, key) for key in keys("benchmark")}
        return {key: value for key, value in values.items() if value is not None and value is not False}

    @property
    def recorded(self) -> dict[str, Any]:
        """Values of the fields that are declared with `recorded=True`, unless they have their default.

        They become part of the record of a run: they are hashed, compared and printed with it.
        """
        default = RunSpec()
        names = [name for name, choice in CHOICES.items() if choice.recorded]
        return {name: value for name in names if (value := getattr(self, name)) != getattr(default, name)}

    @property
    def setup(self) -> RunSpec:
        """The fields that decide what is loaded. Runs with equal setups share a benchmark and a source model."""
        chosen = {"model": self.model, "data": self.data, "preprocessing": self.preprocessing, **self.options}
        return RunSpec(benchmark=self.benchmark, **chosen)


class Choice(NamedTuple):
    """A field of `RunSpec` that a user chooses, with the properties that options, grids and help texts use."""

    type: Any
    help: str
    scope: Scope
    option: str
    """Name of the option, such as --batch-size."""
    key: str
    """Name in a grid file."""
    metavar: str | None
    many: bool
    """Whether the option takes several values, separated by commas."""
    recorded: bool
    """Whether `RunSpec.recorded` contains the value: numbers depend on it, and the record lacks it otherwise."""


def _choices() -> dict[str, Choice]:
    found = {}
    for name, declared in field_types(RunSpec).items():
        for note in getattr(declared, "__metadata__", ()):
            if note.description is None:  # bounds of the type
                continue
            extra = note.extra
            found[name] = Choice(
                declared,
                note.description,
                extra["scope"],
                option=f"--{name}".replace("_", "-"),
                key=extra.get("key", name),
                metavar=extra.get("metavar"),
                many=extra["scope"] == "axis" or name == "domains",
                recorded=extra.get("recorded", False),
            )
    return found


CHOICES: Mapping[str, Choice] = _choices()


def keys(*scopes: Scope) -> list[str]:
    """Names of the fields that a user chooses, in some scopes or in all."""
    return [name for name, choice in CHOICES.items() if not scopes or choice.scope in scopes]


def split(key: str, text: str) -> list[Any]:
    """Split the value of an option at commas. Options of a protocol stay with its name, and seeds become numbers."""
    parts: list[Any] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        if key == "protocol" and "=" in part and parts:
            parts[-1] += f",{part}"
        else:
            parts.append(int(part) if key == "seed" and part.isdecimal() else part)
    return parts


def chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the options that the user gave, without those that were left out."""
    given = {key: value for key, value in options.items() if value is not None and value is not False}
    return {key: split(key, value) if CHOICES[key].many else value for key, value in given.items()}
