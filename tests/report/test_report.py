from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from support.stored_runs import PROTOCOL, write_run
from testdg.report import draw_stream
from testdg.report.figures import name_visits
from testdg.report.record import record_lines, record_note
from testdg.report.style import PALETTE, SOURCE, method_styles, new_figure
from testdg.runs import read_result

RECORD: dict[str, Any] = {
    **PROTOCOL,
    "kind": "held-out",
    "domains": ["fog"],
    "held_out": ["snow"],
    "images_per_domain": [3, 9],
    "batch_size": 4,
    "seed": 2,
    "tuning": "preset",
    "preprocessing": {"size": 256, "crop": [224, 224], "mean": [0.5] * 3, "std": [0.1, 0.2, 0.3]},
}


def test_the_record_in_words_is_complete() -> None:
    shown = "\n".join(record_lines(RECORD))
    texts = [
        "held-out", "digits-c", "generated (abc)", "severity 5", "3 to 9 images", "batches of 4", "vit (def)", "preset",
        "224 x 224 px", "mean 0.5, std 0.1 0.2 0.3", "fp32 on cpu", "seed 2", "tested on 1 more",
    ]  # fmt: skip
    assert [text for text in texts if text not in shown] == []
    assert "batches of 4" in record_note(RECORD)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"rounds": 3, "held_out": [], "severity": [1, 3]}, ["1 domains in order, 3 rounds, severities 1 3"]),
        ({"severity": "gradual", "order": "order 4"}, ["domains in order 4, severity 1 to 5 and back; then frozen"]),
        ({"sampling": "mixed", "sampling_seed": 7}, ["1 domains, severity 5", "batches of 4, domains mixed (seed 7)"]),
        (
            {"sampling": "dirichlet", "concentration": 0.1, "sampling_seed": 0},
            [
                "batches of 4, classes bunched (Dirichlet 0.1, seed 0), reset once at the start, "
                "domain changes not announced"
            ],
        ),
        ({"resets": "at every domain"}, ["reset at every domain, which shows the method where domains change"]),
        ({"severity": "none", "held_out": []}, ["1 domains in order\n"]),
    ],
)
def test_every_kind_of_stream_is_described(changes: dict[str, Any], texts: list[str]) -> None:
    shown = "\n".join(record_lines({**RECORD, **changes}))
    assert [text for text in texts if text not in shown] == []


def colours(path: Path) -> set[Any]:
    with Image.open(path) as picture:
        assert picture.size[0] > 1000
        return {colour for _, colour in picture.convert("RGB").getcolors(1 << 24) or []}


def test_a_figure_shows_the_runs_and_their_means_as_the_tables_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    labels: list[str] = []
    plot = Axes.plot
    record = lambda self, *args, **more: (labels.append(more.get("label", "")), plot(self, *args, **more))[1]  # noqa: E731
    monkeypatch.setattr(Axes, "plot", record)
    source = read_result(write_run(tmp_path / "source", "source", {"fog": 40.0, "snow": 20.0}))
    plain = read_result(write_run(tmp_path / "plain", "testdg", {"fog": 30.0, "snow": 20.0}, images_per_domain=[1, 9]))
    marked = read_result(write_run(tmp_path / "marked", "testdg", {"fog": 30.0, "snow": 20.0}, change_at=2))
    shown = [
        draw_stream(tmp_path / f"{name}.png", {"Source": source, "TestDG": run}, "title", "note")
        for name, run in (("a", plain), ("b", marked))
    ]
    assert labels[:2] == ["Source: 30.0 %", "TestDG: 25.0 %"]  # a mean over domains, however many images they have
    assert shown[0].read_bytes() != shown[1].read_bytes()
    assert {(0, 0, 0), (0xD5, 0x5E, 0x00)} <= colours(shown[0])


def test_a_method_has_one_colour_in_every_figure() -> None:
    alone, among = method_styles(["source", "testdg"]), method_styles(["source", "tent", "testdg"])
    assert alone[1] == among[2] == (PALETTE[0], "o")
    assert alone[0] == among[0] == (SOURCE, "*")
    assert among[1][0] == PALETTE[1]


def visits(rounds: int, names: int, severities: list[int]) -> list[dict[str, Any]]:
    """A visit of four images each."""
    found = [
        {"domain": f"domain_{name}", "severity": severity, "round": number, "phase": "adapt"}
        for number in range(1, rounds + 1)
        for name in range(names)
        for severity in severities
    ]
    return [{**visit, "start": 4 * n, "stop": 4 * n + 4} for n, visit in enumerate(found)]


@pytest.mark.parametrize(
    ("stream", "labels"),
    [
        (visits(1, 15, [1, 2, 3, 4, 5, 4, 3, 2, 1]), [f"domain {n}" for n in range(15)]),
        (visits(2, 3, [5]), [f"domain {n} ({r})" for r in (1, 2) for n in range(3)]),
        (visits(10, 15, [5]), [f"round {n}" for n in range(1, 11)]),
        (visits(1, 90, [5]), [f"domain {n}" for n in range(0, 90, 3)]),
        ([{**visit, "phase": "held_out"} for visit in visits(1, 2, [5])], ["domain 0 *", "domain 1 *"]),
    ],
)
def test_a_figure_names_as_many_domains_as_fit(stream: list[dict[str, Any]], labels: list[str]) -> None:
    _, grid = new_figure(10, 4)
    assert name_visits(grid[0, 0], stream) == labels
