"""What commands share: options, most of them of grids of runs, and what torch must know before it is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Protocols = Annotated[
    str | None, typer.Option(help="Protocols, separated by commas; options follow as in cyclic,rounds=5.")
]
Seeds = Annotated[str | None, typer.Option(help="Seeds, separated by commas.")]
Model = Annotated[str | None, typer.Option(help="Model: a folder or a hub id.")]
Data = Annotated[str | None, typer.Option(help="Folder of the benchmarks' data.")]
Preset = Annotated[str | None, typer.Option(metavar="NAME", help="Published settings of a benchmark.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")]
BatchSize = Annotated[int | None, typer.Option(help="Images per batch; the benchmark's own if left out.")]
Precision = Annotated[str | None, typer.Option(help="fp32 or bf16.")]
Images = Annotated[int | None, typer.Option(help="First images of each domain; all if left out.")]
Severity = Annotated[int | None, typer.Option(help="Severity of the corruptions, 1 to 5.")]
Domains = Annotated[str | None, typer.Option(help="Domains in order, separated by commas.")]
Subset = Annotated[
    str | None, typer.Option(metavar="all|first:N|FILE", help="Images of a set of image files; all if left out.")
]
Preprocessing = Annotated[str | None, typer.Option(help="model or paper.")]
Jobs = Annotated[int, typer.Option(help="Runs at the same time, a process each; with Ray, runs that share a GPU.")]
Engine = Annotated[str, typer.Option(metavar="local|ray", help="Where runs go: this machine, or a Ray cluster.")]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Ray cluster; RAY_ADDRESS, or a new one here, if left out.")
]
GpusPerCell = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of a GPU that a run takes on a Ray cluster, as in 0.1.")
]
Out = Annotated[str, typer.Option(metavar="FOLDER|URL", help="Parent of the run folders; s3://... for complete runs.")]
Track = Annotated[str | None, typer.Option(metavar="tensorboard", help="Write the numbers of every batch for it, too.")]
Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as CSV, too.")]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown, too.")]

_LISTS = {"benchmark": "benchmarks", "protocol": "protocols", "seeds": "seeds", "domains": "domains"}
_VALUES = (
    "model", "data", "preset", "device", "batch_size", "precision", "images", "severity", "subset", "preprocessing",
)  # fmt: skip


def choose(options: Mapping[str, Any]) -> tuple[dict[str, str | None], dict[str, Any]]:
    """Of all options of a command, those with commas and the single values that belong to a grid."""
    lists = {key: options[name] for key, name in _LISTS.items()}
    if "method" in options:
        lists["method"] = options["method"]
    return lists, {key: options[key] for key in _VALUES}


def prepare_torch(*, bf16: bool) -> None:
    """Set what torch reads when it is imported; the user's own environment wins."""
    # Threads that wait by spinning take the cores from each other: beside another job, a run is many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if bf16:  # some virtual machines announce AMX and then kill the process that uses it: keep to plain AVX-512
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
