"""`testdg check-method`: one method against the laws that every method keeps, on small networks of several kinds."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from torch import nn

from testdg.cli.screen import quieten
from testdg.errors import UserError
from testdg.methods import Adapter, find_method
from testdg.models import Preprocessing, TinyCNN, TinyViT, load_model
from testdg.models.tiny import tiny_segformer
from testdg.studies.grid import method_settings
from testdg.testing import check_adapter

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vision transformer": lambda: TinyViT(width=32, depth=2, patch=8),
    "BatchNorm network": lambda: TinyCNN(width=8),
    "SegFormer": lambda: tiny_segformer(5),
}


def check_command(name: str, pairs: Sequence[str], *, as_json: bool) -> bool:
    """Check a method on every small network that it adapts; False where a law is broken."""
    quieten([None])
    method = find_method(name)
    settings = method_settings(name, pairs)
    outcomes = [{"network": label, **_check(method, settings, make)} for label, make in NETWORKS.items()]
    if as_json:
        print(json.dumps(outcomes, indent=2))
    else:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        for one in outcomes:
            console.print(f"{one['network']:<20}{_words(one)}")
    if not any(one["checks"] or one["broken"] for one in outcomes):
        message = f"{name} adapts none of the small networks: check it from Python with testdg.testing"
        raise UserError(message, code="unsuitable-model")
    return not any(one["broken"] for one in outcomes)


def _check(method: type[Adapter], settings: dict[str, Any], make: Callable[[], nn.Module]) -> dict[str, Any]:
    """The laws that hold on one network, the one that is broken, or why the method does not adapt it."""
    half = (0.5,) * 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = load_model(make(), preprocessing=Preprocessing((32, 32), mean=half, std=half))
    try:
        method(model, **settings)
    except UserError as error:
        return {"checks": [], "refused": str(error), "broken": None}
    try:
        checks = check_adapter(lambda **own: method(model, **{**settings, **own}))
        return {"checks": checks, "refused": None, "broken": None}
    except AssertionError as error:
        return {"checks": [], "refused": None, "broken": str(error)}


def _words(one: dict[str, Any]) -> str:
    if one["broken"]:
        return f"broken: {one['broken']}"
    return f"not adapted: {one['refused']}" if one["refused"] else f"{len(one['checks'])} laws hold"
