"""Protocol: a value that says everything a number depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from testdg.data.benchmarks import Benchmark
from testdg.errors import UserError, unknown
from testdg.methods import Adapter

Kind = Literal["continual", "held-out"]
HELD_OUT_DOMAINS = 5


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a number was made; stored and printed with it."""

    kind: Kind
    benchmark: str
    data: str
    data_fingerprint: str
    domains: tuple[str, ...]
    held_out: tuple[str, ...]
    severity: int
    images_per_domain: int | tuple[int, ...]
    batch_size: int
    resets: str
    model: str
    model_fingerprint: str
    preprocessing: dict[str, Any]
    precision: str
    device: str
    seed: int
    tuning: str

    def to_dict(self) -> dict[str, Any]:
        """Give the values as plain JSON."""
        plain = plain_values(asdict(self))
        assert isinstance(plain, dict)
        return plain


def make_protocol(
    benchmark: Benchmark, adapter: Adapter, *, kind: str, batch_size: int, tuning: str, fingerprint: str
) -> Protocol:
    """Gather everything that the number of a run depends on."""
    about = benchmark.describe()
    adapted, held_out = split_domains(kind, about.pop("domains"))
    images = about.pop("images_per_domain")
    return Protocol(
        kind=kind,  # type: ignore[arg-type]
        domains=adapted,
        held_out=held_out,
        images_per_domain=tuple(images) if isinstance(images, list) else images,
        batch_size=batch_size,
        resets="once at the start",
        model=adapter.model.name,
        model_fingerprint=fingerprint,
        preprocessing=adapter.model.preprocessing.describe(),
        precision=adapter.settings.precision,
        device=adapter.model.device.type,
        seed=adapter.settings.seed,
        tuning=tuning,
        **about,
    )


def split_domains(kind: str, names: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Domains that are adapted to, and domains that only test."""
    if kind not in get_args(Kind):
        raise unknown("protocol", kind, get_args(Kind))
    if kind == "continual":
        return tuple(names), ()
    if len(names) <= HELD_OUT_DOMAINS:
        raise UserError(f"held-out tests on the last {HELD_OUT_DOMAINS} domains; the stream has only {len(names)}")
    return tuple(names[:-HELD_OUT_DOMAINS]), tuple(names[-HELD_OUT_DOMAINS:])


def plain_values(value: Any) -> Any:
    """Turn tuples into lists and None into "none", so that TOML and JSON hold the same."""
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    return "none" if value is None else value
