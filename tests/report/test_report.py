from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from testdg.errors import UserError
from testdg.report import draw_stream
from testdg.report.figure import read_events
from testdg.report.protocol import protocol_lines, protocol_note

PROTOCOL: dict[str, Any] = {
    "kind": "held-out", "benchmark": "digits-c", "data": "generated", "data_fingerprint": "abc", "domains": ["fog"],
    "held_out": ["snow"], "severity": 5, "images_per_domain": [3, 9], "batch_size": 4, "resets": "once at the start",
    "model": "vit", "model_fingerprint": "def", "precision": "fp32", "device": "cpu", "seed": 2, "tuning": "preset",
    "preprocessing": {
        "size": 256, "crop": [224, 224], "resample": "bicubic", "mean": [0.5] * 3, "std": [0.1, 0.2, 0.3],
    },
}  # fmt: skip


def test_the_protocol_in_words_leaves_nothing_out() -> None:
    shown = "\n".join(protocol_lines(PROTOCOL))
    texts = [
        "held-out", "digits-c", "generated (abc)", "severity 5", "3 to 9 images", "batches of 4", "vit (def)", "preset",
        "224 x 224 px", "mean 0.5, std 0.1 0.2 0.3", "fp32 on cpu", "seed 2", "tested on 1 more",
    ]  # fmt: skip
    assert [text for text in texts if text not in shown] == []
    assert "batches of 4" in protocol_note(PROTOCOL)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"rounds": 3, "held_out": [], "severity": [1, 3]}, ["1 domains in order, 3 rounds, severities 1 3"]),
        ({"severity": "gradual", "order": "order 4"}, ["domains in order 4, severity 1 to 5 and back; then frozen"]),
        ({"sampling": "mixed", "sampling_seed": 7}, ["1 domains, severity 5", "batches of 4, domains mixed (seed 7)"]),
        (
            {"sampling": "dirichlet", "concentration": 0.1, "sampling_seed": 0},
            ["batches of 4, classes bunched (Dirichlet 0.1, seed 0), reset once at the start, domain changes not told"],
        ),
        ({"resets": "at every domain"}, ["reset at every domain, which tells the method where domains change"]),
        ({"severity": "none", "held_out": []}, ["1 domains in order\n"]),
    ],
)
def test_every_kind_of_stream_has_words(changes: dict[str, Any], texts: list[str]) -> None:
    shown = "\n".join(protocol_lines({**PROTOCOL, **changes}))
    assert [text for text in texts if text not in shown] == []


def events(errors: int, change_at: int = -1, **more: Any) -> list[dict[str, Any]]:
    fixed = {"phase": "adapt", "images": 4, "errors": errors, **more}
    return [{"batch": i, "domain": "fog" if i < 5 else "snow", "change": i == change_at, **fixed} for i in range(10)]


def test_a_figure_is_a_picture_that_shows_the_runs(tmp_path: Path) -> None:
    plain = draw_stream(tmp_path / "a.png", {"Source": events(3), "TENT": events(1)}, "TENT on digits-c", "note")
    marked = draw_stream(tmp_path / "b.png", {"Source": events(3), "TENT": events(1, 5)}, "TENT on digits-c", "note")
    with Image.open(plain) as first, Image.open(marked) as second:
        assert first.size[0] > 1000
        assert first.tobytes() != second.tobytes()
        colours = {colour for _, colour in first.convert("RGB").getcolors(1 << 24) or []}
    assert {(0, 0, 0), (0xD5, 0x5E, 0x00)} <= colours


def visits(rounds: int, names: int, severities: list[int]) -> list[dict[str, Any]]:
    """One batch for every visit."""
    return [
        {"domain": f"domain_{name}", "severity": severity, "round": number, "phase": "adapt", "images": 4, "errors": 1}
        for number in range(1, rounds + 1)
        for name in range(names)
        for severity in severities
    ]


@pytest.mark.parametrize(
    ("stream", "labels"),
    [
        (visits(1, 15, [1, 2, 3, 4, 5, 4, 3, 2, 1]), [f"domain {n}" for n in range(15)]),
        (visits(2, 3, [5]), [f"domain {n} ({r})" for r in (1, 2) for n in range(3)]),
        (visits(10, 15, [5]), [f"round {n}" for n in range(1, 11)]),
        (visits(1, 90, [5]), [f"domain {n}" for n in range(0, 90, 3)]),
        ([{**event, "phase": "held_out"} for event in visits(1, 2, [5])], ["domain 0 *", "domain 1 *"]),
    ],
)
def test_names_above_the_figure_are_as_many_as_there_is_room_for(
    stream: list[dict[str, Any]], labels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    written: list[str] = []
    text = Axes.text
    monkeypatch.setattr(Axes, "text", lambda self, x, y, s, **kw: (written.append(s), text(self, x, y, s, **kw))[1])
    draw_stream(tmp_path / "a.png", {"Source": stream}, "title")
    assert written == labels


def test_events_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"events\.jsonl cannot be read"):
        read_events(tmp_path)
