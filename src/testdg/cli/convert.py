"""`testdg convert`: a checkpoint of others as a model folder."""

import json
from pathlib import Path

from rich.console import Console

from testdg.cli.screen import quieten
from testdg.models.convert import BRANCHES, convert

_NAMED = 5  # names that are shown


def convert_command(file: Path, out: Path, timm: str | None, like: str | None, *, as_json: bool) -> None:
    """Convert the file, and say what did not fit."""
    quieten([like])
    model, fitted = convert(file, out, timm=timm, like=like)
    branches, unknown = len(fitted.branches), fitted.unknown
    if as_json:
        about = {"classes": model.classes, "fingerprint": model.fingerprint(), "branches": branches}
        print(json.dumps({"model": str(out), **about, "unknown": unknown}, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"model  {out} ({model.classes} classes, {model.fingerprint()})")
    if branches:
        console.print(f"note   {branches} tensors of branches beside layers are in {BRANCHES}; the model goes without")
    if unknown:
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        console.print(f"note   left out, the network has no place for them: {', '.join(unknown[:_NAMED])}{more}")
    if timm is not None:
        console.print("note   size, mean and deviation are timm's: check preprocessor_config.json against the training")
