"""`testdg serve`: an adapting model behind an address."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from rich.console import Console

from testdg.cli.screen import quieten
from testdg.errors import UserError, visible
from testdg.runs.setup import Choices


def require_server() -> None:
    """Say how to get FastAPI and uvicorn where they are missing."""
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"testdg serve needs {error.name}: pip install 'testdg[serve]'") from error


def serve_command(
    model: str | None, choices: Choices, settings: dict[str, Any], place: dict[str, Any], *, demo: bool
) -> None:
    """Make the model ready, say where it listens, and serve until Ctrl-C."""
    require_server()
    from testdg.serve.demo import NAME, demo_factory
    from testdg.serve.factory import Factory
    from testdg.serve.limits import Limits
    from testdg.serve.security import find_token
    from testdg.serve.server import Place, serve

    if (model is None) != demo:
        raise UserError("name a model with --model, or see the demonstration with --demo")
    if demo and (choices.source is not None or choices.classes is not None):
        raise UserError("--demo brings its own clean pictures and classes: leave out --source and --classes")
    token = find_token(place.pop("token_file"))
    where = Place(token=token, limits=Limits(resident=place.pop("resident")), **place)
    where.check()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    _log_to(console)
    if demo:
        console.print("the source model of the demonstration is trained once, in half a minute", markup=False)
        factory = demo_factory(where.out, choices.method, settings, choices.device)
    else:
        assert model is not None
        quieten([model])
        factory = Factory(model, choices, settings)
    for note in factory.notes:
        console.print(f"note      {visible(note)}", markup=False)
    host = f"[{where.host}]" if ":" in where.host else where.host
    console.print(f"serving   {factory.method.name} on {factory.model.name}; states in {where.out}", markup=False)
    console.print(f"page      http://{host}:{where.port}/{f'?stream={NAME}' if demo else ''}", markup=False)
    lost = serve(factory, where, demo=demo)
    for sentence in lost or ["everything is saved"]:
        console.print(f"ended     {visible(sentence)}", markup=False)


def _log_to(console: Console) -> None:
    """One line for every action and every problem."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("testdg").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", module="PIL")
    warnings.showwarning = lambda message, *_, **__: console.print(f"note      {visible(str(message))}", markup=False)
