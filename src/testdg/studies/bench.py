"""`bench`: all cells of a grid, with one engine or another; what fails does not stop the rest."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.methods import find_method
from testdg.models.device import find_device
from testdg.runs import Observer
from testdg.studies.engine import Complete, Engine, Failed, News, Running, forget_setup, load_setup
from testdg.studies.expansion import Mistakes
from testdg.studies.grid import Cell
from testdg.studies.local import Local
from testdg.studies.storage import Out, find_out


def prepare(cells: Sequence[Cell], observer: Observer | None = None, *, devices: bool = True) -> None:
    """Make everything ready on this machine: devices, and source models, which are loaded, trained or fetched once.

    All mistakes are told at once, before any cell runs. Without `devices`, those of this machine do not matter.
    """
    mistakes = Mistakes()
    for device in dict.fromkeys(cell.device for cell in cells if devices):
        mistakes.hear("", find_device, device)
    for setup in dict.fromkeys(cell.setup for cell in cells):
        found = mistakes.hear("", load_setup, setup, "cpu", observer)
        for method in dict.fromkeys(cell.method for cell in cells if found and cell.setup == setup):
            if found and (reason := find_method(method).refuses(found[1])):
                mistakes.note(f"{method} cannot adapt {found[1].name}: {reason}")
    forget_setup()
    mistakes.tell("the grid")


def bench(
    cells: Sequence[Cell],
    out: str | Path = "runs",
    *,
    engine: Engine | None = None,
    tell: Callable[[News], Any] | None = None,
) -> list[Complete | Failed]:
    """Run cells, each into its own run folder under `out`, and give what became of them, in their order.

    A cell that was stopped goes on, and a complete one is read back. `tell` hears what happens meanwhile. `out` may be
    a URL of fsspec: it gets the complete runs, and results come with a folder of this machine that has their numbers.
    """
    ends: dict[int, Complete | Failed] = {}
    place = find_out(out)
    with closing((engine or Local()).run(cells, place)) as news:
        for one in (_bring(one, place) for one in news):
            if tell is not None:
                tell(one)
            if not isinstance(one, Running):
                ends[one.number] = one
    return [ends[number] for number in range(len(cells))]


def _bring(news: News, place: Out) -> News:
    """The same news; the numbers of a run that was sent to a URL are brought here."""
    if isinstance(place, Path) or not isinstance(news, Complete):
        return news
    try:
        folder = place.copy(news.result.folder.name)
    except UserError as error:
        return Failed(news.number, str(error))
    return Complete(news.number, replace(news.result, folder=folder))
