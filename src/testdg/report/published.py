"""Numbers that papers published, as data, with what they depend on; reports show them in tables of their own."""

import re
from dataclasses import dataclass

from testdg.data.corruptions import STANDARD_ORDER
from testdg.runs.scores import Classification, Metric, Segmentation

ROUNDS = tuple(f"{name} ({number})" for number in (1, 2, 3) for name in ("fog", "night", "rain", "snow", "mean"))
_PAPER = "the paper of TestDG"
_OTHERS = "tables of later papers that print the benchmark again"
_STREAM = "15 corruptions at severity 5 in the standard order, one reset at the start"
_SMALL = f"ViT-B/16 at 384 px without normalisation; {_STREAM}; 10,000 images per domain; batches of 4 to 50 by method"
_LARGE = f"ViT-B/16 at 224 px without normalisation; {_STREAM}; 5,000 images per domain; batches of 50 or 64"
_FROZEN = "; adapted to the first 10 corruptions, then frozen and tested on the last 5"
_CITY = "SegFormer-B5 trained on Cityscapes; ACDC at 960 x 540 px, 400 images per domain, batches of 1"


@dataclass(frozen=True)
class Published:
    """A table that was published; the last number of a row is its mean."""

    benchmark: str
    protocol: str
    """The protocol of ours that it belongs to, by name."""
    conditions: str
    rows: dict[str, tuple[float, ...]]
    columns: tuple[str, ...] = ()
    """The columns before the mean."""
    metric: Metric = Classification.metric
    source: str = _PAPER
    remark: str = ""


def published(benchmark: str, protocol: str) -> list[Published]:
    """What was published for a benchmark under a protocol."""
    return [table for table in TABLES if (table.benchmark, table.protocol) == (benchmark, protocol)]


def _rows(text: str) -> dict[str, tuple[float, ...]]:
    """Read rows, one to a line or with semicolons between them: the name, a colon, and its numbers."""
    pairs = (row.split(":") for row in re.split("[\\n;]", text.strip()))
    return {name.strip(): tuple(map(float, numbers.split())) for name, numbers in pairs}


TABLES = (
    Published(
        "cifar10-c",
        "continual",
        _SMALL,
        _rows("""
            Source: 60.1 53.2 38.3 19.9 35.5 22.6 18.6 12.1 12.7 22.8 5.3 49.7 23.6 24.7 23.1 28.2
            Pseudo: 59.8 52.5 37.2 19.8 35.2 21.8 17.6 11.6 12.3 20.7 5.0 41.7 21.5 25.2 22.1 26.9
            TENT: 57.7 56.3 29.4 16.2 35.3 16.2 12.4 11.0 11.6 14.9 4.7 22.5 15.9 29.1 19.5 23.5
            CoTTA: 58.7 51.3 33.0 20.1 34.8 20.0 15.2 11.1 11.3 18.5 4.0 34.7 18.8 19.0 17.9 24.6
            VDP: 57.5 49.5 31.7 21.3 35.1 19.6 15.1 10.8 10.3 18.1 4.0 27.5 18.4 22.5 19.9 24.1
            ViDA: 52.9 47.9 19.4 11.4 31.3 13.3 7.6 7.6 9.9 12.5 3.8 26.3 14.4 33.9 18.2 20.7
            Continual-MAE: 30.6 18.9 11.5 10.4 22.5 13.9 9.8 6.6 6.5 8.8 4.0 8.5 12.7 9.2 14.4 12.6
            Versatile: 16.3 11.1 9.6 8.4 14.6 8.6 5.5 6.3 5.7 7.1 3.3 5.4 10.9 7.7 12.8 8.9
            TestDG: 17.4 10.9 5.4 6.3 16.3 6.9 3.9 3.7 3.8 5.9 2.2 4.7 7.8 11.2 9.4 7.7
        """),
        STANDARD_ORDER,
    ),
    Published(
        "cifar100-c",
        "continual",
        _SMALL,
        _rows(
            "Source: 35.4; Pseudo: 33.2; TENT: 32.1; CoTTA: 34.8; VDP: 32.0; ViDA: 27.3; "
            "Continual-MAE: 26.4; Versatile: 24.0; TestDG: 23.3"
        ),
    ),
    Published(
        "cifar100-c",
        "continual",
        _SMALL,
        _rows("""
            Source: 55.0 51.5 26.9 24.0 60.5 29.0 21.4 21.1 25.0 35.2 11.8 34.8 43.2 56.0 35.9 35.4
            Pseudo: 53.8 48.9 25.4 23.0 58.7 27.3 19.6 20.6 23.4 31.3 11.8 28.4 39.6 52.3 33.9 33.2
            TENT: 53.0 47.0 24.6 22.3 58.5 26.5 19.0 21.0 23.0 30.1 11.8 25.2 39.0 47.1 33.3 32.1
            CoTTA: 55.0 51.3 25.8 24.1 59.2 28.9 21.4 21.0 24.7 34.9 11.7 31.7 40.4 55.7 35.6 34.8
            VDP: 54.8 51.2 25.6 24.2 59.1 28.8 21.2 20.5 23.3 33.8 7.5 11.7 32.0 51.7 35.2 32.0
            ViDA: 50.1 40.7 22.0 21.2 45.2 21.6 16.5 17.9 16.6 25.6 11.5 29.0 29.6 34.7 27.1 27.3
            Continual-MAE: 48.6 30.7 18.5 21.3 38.4 22.2 17.5 19.3 18.0 24.8 13.1 27.8 31.4 35.5 29.5 26.4
        """),
        STANDARD_ORDER,
        source=_OTHERS,
        remark="VDP's brightness and contrast are far below all others and may be printed in the wrong columns",
    ),
    Published(
        "imagenet-c",
        "continual",
        _LARGE,
        _rows(
            "Source: 55.8; Pseudo: 61.2; TENT: 51.0; CoTTA: 54.8; VDP: 50.0; ViDA: 43.4; "
            "Continual-MAE: 42.5; Versatile: 42.7; TestDG: 42.5"
        ),
    ),
    Published(
        "imagenet-c",
        "continual",
        _LARGE,
        _rows("""
            Source: 53.0 51.8 52.1 68.5 78.8 58.5 63.3 49.9 54.2 57.7 26.4 91.4 57.5 38.0 36.2 55.8
            Pseudo: 45.2 40.4 41.6 51.3 53.9 45.6 47.7 40.4 45.7 93.8 98.5 99.9 99.9 98.9 99.6 66.8
            TENT: 52.2 48.9 49.2 65.8 73.0 54.5 58.4 44.0 47.7 50.3 23.9 72.8 55.7 34.4 33.9 51.0
            CoTTA: 52.9 51.6 51.4 68.3 78.1 57.1 62.0 48.2 52.7 55.3 25.9 90.0 56.4 36.4 35.2 54.8
            VDP: 52.7 51.6 50.1 58.1 70.2 56.1 58.1 42.1 46.1 45.8 23.6 70.4 54.9 34.5 36.1 50.0
            ViDA: 47.7 42.5 42.9 52.2 56.9 45.5 48.9 38.9 42.7 40.7 24.3 52.8 49.1 33.5 32.3 43.4
            Continual-MAE: 46.3 41.9 42.5 51.4 54.9 43.3 40.7 34.2 35.8 64.3 23.4 60.3 37.5 29.2 31.4 42.5
        """),
        STANDARD_ORDER,
        source=_OTHERS,
        remark="Pseudo's mean differs from the one in the paper of TestDG",
    ),
    Published("cifar10-c", "held-out", _SMALL + _FROZEN, _rows("Source: 25.3; T3A: 13.6; ViDA: 21.5; TestDG: 11.8")),
    Published(
        "cifar100-c",
        "held-out",
        _SMALL + _FROZEN,
        _rows("Source: 45.2; T3A: 34.8; ViDA: 49.5; TestDG: 33.1"),
        remark="Source, which never adapts, has a mean of 36.3 on these five corruptions in its row of the continual "
        "table: 45.2 must belong to another condition, and so may the other rows",
    ),
    Published("imagenet-c", "held-out", _LARGE + _FROZEN, _rows("Source: 49.9; T3A: 42.2; ViDA: 40.6; TestDG: 39.9")),
    Published(
        "cifar10-c",
        "gradual",
        "ViT-B/16 at 384 px without normalisation; severities 5 to 1, then 1 to 5 and back; mean over ten orders",
        _rows("Source: 13.7; ViDA: 7.7; Continual-MAE: 6.5; TestDG: 3.6"),
    ),
    Published(
        "acdc",
        "cyclic",
        f"{_CITY}; fog, night, rain, snow in three rounds, no reset",
        _rows("""
            Source: 69.1 40.3 59.7 57.8 56.7 69.1 40.3 59.7 57.8 56.7 69.1 40.3 59.7 57.8 56.7 56.7
            TENT: 69.0 40.2 60.1 57.3 56.7 68.3 39.0 60.1 56.3 55.9 67.5 37.8 59.6 55.0 55.0 55.9
            CoTTA: 70.9 41.2 62.4 59.7 58.6 70.9 41.1 62.6 59.7 58.6 70.9 41.0 62.7 59.7 58.6 58.6
            DePT: 71.0 40.8 58.2 56.8 56.7 68.2 40.0 55.4 53.7 54.3 66.4 38.0 47.3 47.2 49.7 53.6
            ECoTTA: 68.5 35.8 62.1 57.4 56.0 68.3 35.5 62.3 57.4 55.9 68.1 35.3 62.3 57.3 55.8 55.8
            VDP: 70.5 41.1 62.1 59.5 58.3 70.4 41.1 62.2 59.4 58.2 70.4 41.0 62.2 59.4 58.2 58.2
            ViDA: 71.6 43.2 66.0 63.4 61.1 73.2 44.5 67.0 63.9 62.2 73.2 44.6 67.2 64.2 62.3 61.9
            BECoTTA: 72.3 42.0 63.5 60.1 59.5 72.4 41.9 63.5 60.2 59.5 72.3 41.9 63.6 60.2 59.5 59.5
            SVDP: 72.1 44.0 65.2 63.0 61.1 72.2 44.5 65.9 63.5 61.5 72.1 44.2 65.6 63.6 61.4 61.3
            Continual-MAE: 71.9 44.6 67.4 63.2 61.8 71.7 44.9 66.5 63.1 61.6 72.3 45.4 67.1 63.1 62.0 61.8
            Zhu et al.: 71.2 42.3 64.9 62.0 60.1 72.6 43.2 66.3 63.2 61.3 72.8 43.8 66.5 63.2 61.6 61.0
            TestDG: 71.9 45.5 66.4 63.9 62.0 73.2 45.8 67.4 64.1 62.6 72.8 44.7 67.9 63.7 62.3 62.3
        """),
        ROUNDS,
        metric=Segmentation.metric,
        remark="the means of TestDG have a deviation of 0.1",
    ),
    Published(
        "acdc",
        "leave-one-out",
        f"{_CITY}; each domain left out once, adapted to the others, then frozen and tested on it",
        _rows("Source: 58.3; CoTTA: 58.5; ViDA: 58.4; TestDG: 59.0"),
        metric=Segmentation.metric,
        remark="Source, which never adapts, has a mean of 56.7 on the same four domains in the cyclic table: 58.3 must "
        "belong to another condition, and so may the other rows",
    ),
)
