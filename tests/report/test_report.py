import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from testdg.errors import UserError
from testdg.report import draw_stream, make_rows, plain_table, rich_table
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


def test_a_plain_table_is_aligned_with_mean_and_gain_last() -> None:
    rows = make_rows(["fog", "snow"], [], [{"fog": 10.0, "snow": 20.0}, {"fog": 8.0, "snow": 23.0}])
    assert plain_table(["Source", "TENT"], rows) == [
        "error, %  Source  TENT  gain",
        "fog         10.0   8.0  +2.0",
        "snow        20.0  23.0  -3.0",
        "mean        15.0  15.5  -0.5",
    ]


def test_a_table_in_the_making_has_gaps_and_no_mean() -> None:
    rows = make_rows(["fog", "snow"], [], [{"fog": 10.0, "snow": 20.0}, {"fog": 8.0}])
    assert [row.cells() for row in rows] == [
        ["fog", "10.0", "8.0", "+2.0"], ["snow", "20.0", "", ""], ["mean", "15.0", "", ""],
    ]  # fmt: skip


def test_held_out_domains_have_their_own_mean() -> None:
    rows = make_rows(["fog"], ["snow", "frost"], [{"fog": 10.0, "snow": 20.0, "frost": 30.0}])
    assert [row.cells() for row in rows[1:]] == [
        ["mean", "10.0"], ["snow (held out)", "20.0"], ["frost (held out)", "30.0"], ["mean (held out)", "25.0"],
    ]  # fmt: skip


def test_a_rich_table_shows_the_same_numbers() -> None:
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(rich_table(["Source", "TENT"], make_rows(["fog"], [], [{"fog": 10.0}, {"fog": 8.0}])))
    shown = console.export_text()
    assert all(text in shown for text in ("Source", "TENT", "fog", "10.0", "8.0", "+2.0"))


def test_the_protocol_in_words_leaves_nothing_out() -> None:
    shown = "\n".join(protocol_lines(PROTOCOL))
    texts = [
        "held-out", "digits-c", "generated (abc)", "severity 5", "3 to 9 images", "batches of 4", "vit (def)", "preset",
        "224 x 224 px", "mean 0.5, std 0.1 0.2 0.3", "fp32 on cpu", "seed 2", "tested on 1 more",
    ]  # fmt: skip
    assert [text for text in texts if text not in shown] == []
    assert "batches of 4" in protocol_note(PROTOCOL)


def events(errors: int, change_at: int = -1) -> list[dict[str, Any]]:
    fixed = {"phase": "adapt", "images": 4, "errors": errors}
    return [{"batch": i, "domain": "fog" if i < 5 else "snow", "change": i == change_at, **fixed} for i in range(10)]


def test_a_figure_is_a_picture_that_shows_the_runs(tmp_path: Path) -> None:
    plain = draw_stream(tmp_path / "a.png", {"Source": events(3), "TENT": events(1)}, "TENT on digits-c", "note")
    marked = draw_stream(tmp_path / "b.png", {"Source": events(3), "TENT": events(1, 5)}, "TENT on digits-c", "note")
    with Image.open(plain) as first, Image.open(marked) as second:
        assert first.size[0] > 1000
        assert first.tobytes() != second.tobytes()
        colours = {colour for _, colour in first.convert("RGB").getcolors(1 << 24) or []}
    assert {(0, 0, 0), (0xD5, 0x5E, 0x00)} <= colours


def test_events_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"events\.jsonl cannot be read"):
        read_events(tmp_path)
