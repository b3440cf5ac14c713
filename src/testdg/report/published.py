"""Numbers that papers published (`published.toml`), with what they depend on; reports show them in their own tables."""

from functools import cache
from pathlib import Path

import msgspec

from testdg.files import read_toml
from testdg.runs.scores import Classification, Metric, Segmentation


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was published; the last number of a row is its mean."""

    benchmark: str
    protocol: str
    """The protocol of ours that it belongs to, by name."""
    source: str
    conditions: str
    rows: dict[str, tuple[float, ...]]
    columns: tuple[str, ...] = ()
    """The columns before the mean."""
    metric_key: str = msgspec.field(name="metric", default=Classification.metric.key)
    remark: str = ""

    @property
    def metric(self) -> Metric:
        metrics = (Classification.metric, Segmentation.metric)
        return next(metric for metric in metrics if metric.key == self.metric_key)


@cache
def published_tables() -> list[Published]:
    tables = read_toml(Path(__file__).with_suffix(".toml"), "published numbers")
    return msgspec.convert(tables["table"], list[Published])


def published(benchmark: str, protocol: str) -> list[Published]:
    """What was published for a benchmark under a protocol."""
    return [table for table in published_tables() if (table.benchmark, table.protocol) == (benchmark, protocol)]
