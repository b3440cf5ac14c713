"""Commands for a stream of a user's own pictures: their options, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testdg.choices import CHOICES
from testdg.cli import options as given
from testdg.cli.options import prepare_torch

_MODEL = "Model: a folder, a hub id, a timm name, or the name of one in a --plugin."


def adapt(
    frames: Annotated[
        str, typer.Argument(metavar="FRAMES", help="Folder of pictures, list of paths, video, or - for paths on stdin.")
    ],
    model: Annotated[str, typer.Option(help=_MODEL)],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the predictions; goes on where it stopped.")],
    method: Annotated[str | None, typer.Option(help="Method; see `testdg methods` (testdg_aligned).")] = None,
    source: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Clean pictures to align to; in folders of their classes if need be."),
    ] = None,
    settings: given.Settings = None,
    guard: Annotated[bool, typer.Option("--guard/--no-guard", help=CHOICES["guard"].help)] = True,
    classes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of the classes, one per line; the model's if left out.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pictures per batch (32; of segmentation 1).")] = None,
    order: Annotated[str, typer.Option(metavar="name|time", help="Order of the pictures of a folder.")] = "name",
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for more pictures in the folder, until Ctrl-C.")
    ] = False,
    idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="With --follow: end after so long without a new picture.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a picture that cannot be read.")] = False,
    load_state: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Begin with an adapter that was saved before.")
    ] = None,
    save_state: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Save the adapter at the end.")] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the adapted model as an ordinary one at the end.")
    ] = None,
    format: Annotated[str, typer.Option(metavar="csv|parquet", help="Parquet beside the CSV, by pyarrow.")] = "csv",
    device: Annotated[str, typer.Option(help=CHOICES["device"].help)] = "auto",
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="ray: every subfolder of FRAMES is a stream, on a Ray cluster.")
    ] = "local",
    address: given.Address = None,
    cpus: given.Cpus = None,
    gpus: given.Gpus = None,
    json: given.Json = False,
) -> None:
    """Predict your own pictures with your own model while it adapts to them; no labels."""
    pairs = settings or []
    prepare_torch(bf16=any("precision=bf16" in pair for pair in pairs))
    from testdg.cli.adapt import adapt_command, settings_of
    from testdg.cli.fleet import find_places, fleet_command
    from testdg.streaming.run import Request
    from testdg.streaming.setup import Choices

    places = find_places(engine, address=address, cpus=cpus, gpus=gpus)
    choices = Choices(method=method, source=source, guard=guard, classes=classes, device=device, load_state=load_state)
    request = Request(
        frames=frames,
        model=model,
        out=out,
        choices=choices,
        settings=settings_of(method, pairs),
        batch_size=batch_size,
        order=order,
        follow=follow,
        idle=idle,
        strict=strict,
        save_state=save_state,
        export=export,
        format=format,
    )
    if places is None:
        adapt_command(request, as_json=json)
    elif not fleet_command(request, places, as_json=json):
        raise typer.Exit(1)


def serve(
    model: Annotated[str | None, typer.Option(help=_MODEL)] = None,
    source: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Clean pictures to align to.")] = None,
    method: Annotated[str | None, typer.Option(help="Method; see `testdg methods` (testdg_aligned).")] = None,
    settings: given.Settings = None,
    classes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of the classes, one per line; the model's if left out.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address; any that others can reach needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token; TESTDG_TOKEN if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the states; goes on from them.")] = Path(
        "serve"
    ),
    resident: Annotated[int, typer.Option(min=1, help="Streams in memory; others wait on disk.")] = 8,
    demo: Annotated[bool, typer.Option("--demo", help="Play the embedded stream: nothing else is needed.")] = False,
    device: Annotated[str, typer.Option(help=CHOICES["device"].help)] = "auto",
) -> None:
    """Serve a model that adapts, with a page to watch it; predictions at once, learning beside them."""
    pairs = settings or []
    prepare_torch(bf16=any("precision=bf16" in pair for pair in pairs))
    from testdg.cli.adapt import settings_of
    from testdg.cli.serve import serve_command
    from testdg.streaming.setup import Choices

    choices = Choices(method=method, source=source, classes=classes, device=device)
    place = {"out": out, "host": host, "port": port, "token_file": token_file, "resident": resident}
    serve_command(model, choices, settings_of(method, pairs), place, demo=demo)
