"""Commands for a stream of a user's own pictures: their options, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from testdg.cli import options as given
from testdg.cli.options import prepare_torch, ray_options
from testdg.spec import CHOICES

_MODEL = "Model: a folder, a hub id, a timm name, or the name of one in a --plugin."


def adapt(
    frames: Annotated[
        str, Argument(metavar="FRAMES", help="Folder of pictures, list of paths, video, or - for paths on stdin.")
    ],
    model: Annotated[str, Option(help=_MODEL)],
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder of the predictions; goes on where it stopped.")],
    method: Annotated[str | None, Option(help="Method; see `testdg methods` (testdg_aligned).")] = None,
    source: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Clean pictures to align to; in folders of their classes if need be."),
    ] = None,
    settings: given.Settings = None,
    guard: Annotated[bool, Option("--guard/--no-guard", help=CHOICES["guard"].help)] = True,
    classes: Annotated[
        Path | None, Option(metavar="FILE", help="Names of the classes, one per line; the model's if left out.")
    ] = None,
    batch_size: Annotated[int | None, Option(min=1, help="Pictures per batch (32; of segmentation 1).")] = None,
    order: Annotated[str, Option(metavar="name|time", help="Order of the pictures of a folder.")] = "name",
    follow: Annotated[bool, Option("--follow", help="Wait for more pictures in the folder, until Ctrl-C.")] = False,
    idle: Annotated[
        float | None, Option(metavar="SECONDS", help="With --follow: end after so long without a new picture.")
    ] = None,
    strict: Annotated[bool, Option("--strict", help="Stop at a picture that cannot be read.")] = False,
    load_state: Annotated[
        Path | None, Option(metavar="FOLDER", help="Begin with an adapter that was saved before.")
    ] = None,
    save_state: Annotated[Path | None, Option(metavar="FOLDER", help="Save the adapter at the end.")] = None,
    export: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write the adapted model as an ordinary one at the end.")
    ] = None,
    format: Annotated[str, Option(metavar="csv|parquet", help="Parquet beside the CSV, by pyarrow.")] = "csv",
    device: Annotated[str, Option(help=CHOICES["device"].help)] = "auto",
    engine: Annotated[
        str, Option(metavar="local|ray", help="ray: every subfolder of FRAMES is a stream, on a Ray cluster.")
    ] = "local",
    address: given.Address = None,
    cpus: given.Cpus = None,
    gpus: given.Gpus = None,
    json: given.Json = False,
) -> bool:
    """Predict your own pictures with your own model while it adapts to them; no labels."""
    pairs = settings or []
    prepare_torch(bf16=any("precision=bf16" in pair for pair in pairs))
    from testdg.cli.adapt import adapt_command, settings_of
    from testdg.cli.fleet import fleet_command
    from testdg.runs.adapt import Request
    from testdg.runs.session import PictureOptions

    places = ray_options(engine, address=address, cpus=cpus, gpus=gpus)
    chosen = PictureOptions(
        method=method, source=source, guard=guard, classes=classes, device=device, load_state=load_state
    )
    request = Request(
        frames=frames,
        model=model,
        out=out,
        options=chosen,
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
    if places is not None:
        return fleet_command(request, places, as_json=json)
    adapt_command(request, as_json=json)
    return True


def serve(
    model: Annotated[str | None, Option(help=_MODEL)] = None,
    source: Annotated[Path | None, Option(metavar="FOLDER", help="Clean pictures to align to.")] = None,
    method: Annotated[str | None, Option(help="Method; see `testdg methods` (testdg_aligned).")] = None,
    settings: given.Settings = None,
    classes: Annotated[
        Path | None, Option(metavar="FILE", help="Names of the classes, one per line; the model's if left out.")
    ] = None,
    host: Annotated[str, Option(help="Address; any that others can reach needs a token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, help="Port.")] = 8000,
    token_file: Annotated[
        Path | None, Option(metavar="FILE", help="File with the token; TESTDG_TOKEN if left out.")
    ] = None,
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder of the states; goes on from them.")] = Path("serve"),
    resident: Annotated[int, Option(min=1, help="Streams in memory; others wait on disk.")] = 8,
    demo: Annotated[bool, Option("--demo", help="Play the embedded stream: nothing else is needed.")] = False,
    device: Annotated[str, Option(help=CHOICES["device"].help)] = "auto",
) -> None:
    """Serve a model that adapts, with a page to watch it; predictions at once, learning beside them."""
    pairs = settings or []
    prepare_torch(bf16=any("precision=bf16" in pair for pair in pairs))
    from testdg.cli.adapt import settings_of
    from testdg.cli.serve import serve_command
    from testdg.runs.session import PictureOptions

    chosen = PictureOptions(method=method, source=source, classes=classes, device=device)
    place = {"out": out, "host": host, "port": port, "token_file": token_file, "resident": resident}
    serve_command(model, chosen, settings_of(method, pairs), place, demo=demo)
