"""`testdg serve`: an adapting model behind an address."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from rich.console import Console

from testdg.cli.screen import quieten
from testdg.errors import UserError, visible
from testdg.runs.session import PictureOptions


def require_server() -> None:
    """Refuse to start if a package of the extra `serve` is missing."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"testdg serve needs {error.name}: pip install 'testdg[serve]'", "not-installed") from error


def serve_command(
    model: str | None, choices: PictureOptions, settings: dict[str, Any], place: dict[str, Any], *, demo: bool
) -> None:
    """Load the model, print the address, and serve until Ctrl-C or SIGTERM."""
    require_server()
    from testdg.serve.demo import NAME, demo_factory
    from testdg.serve.factory import Factory
    from testdg.serve.limits import Limits
    from testdg.serve.security import find_token
    from testdg.serve.server import Place, serve

    if (model is None) != demo:
        raise UserError("choose either a model with --model, or the demonstration with --demo", "option-conflict")
    if demo and (choices.source is not None or choices.classes is not None):
        message = "--demo has its own source pictures and classes: leave out --source and --classes"
        raise UserError(message, "option-conflict")
    token = find_token(place.pop("token_file"))
    where = Place(token=token, limits=Limits(resident=place.pop("resident")), **place)
    where.check()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    _log_to(console)
    if demo:
        console.print("the source model of the demonstration is trained once, which takes half a minute", markup=False)
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
    """Log one line for every action and every problem."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("testdg").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", module="PIL")
    warnings.showwarning = lambda message, *_, **__: console.print(f"note      {visible(str(message))}", markup=False)
