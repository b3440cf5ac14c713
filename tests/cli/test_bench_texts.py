"""Hostile names of runs stay texts in files and on the terminal of `testdg bench`."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from support.commands import refuses
from testdg.cli.app import execute
from testdg.report.safe import fenced

HOSTILE = [
    "=1+1",
    "+1",
    "-1+2",
    "@SUM(A1)",
    "\t=1",
    "  =HYPERLINK(1)",
    "a\n=1,2",
    "<script>alert(1)</script>",
    "&lt;b>",
    "![x](http://example.org)",
    "`x` ``` y | *z* _w_ # v \\",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eright to left",
    "[red]markup[/red]",
    "a\r\nb\x00c",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, str]:
    """Table, Markdown and CSV of runs with these names."""
    folder = tmp_path_factory.mktemp("bench")
    runs = [
        f"[[run]]\nname = {json.dumps(name, ensure_ascii=True)}\nsettings = {{ learning_rate = {number}e-6 }}\n"
        for number, name in enumerate(HOSTILE, 1)
    ]
    (folder / "grid.toml").write_text('method = "tent"\n' + "".join(runs))
    options = ["--model", str(model), "--out", str(folder / "runs"), "--device", "cpu", "--images", "4"]
    files = ["--csv", str(folder / "table.csv"), "--markdown", str(folder / "table.md"), "--domains", "fog"]
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", shown)
        assert execute(["bench", str(folder / "grid.toml"), *options, *files]) == 0
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in ("table.csv", "table.md")}
    return {**texts, "shown": shown.getvalue()}


def test_no_cell_is_a_formula(outputs: dict[str, str]) -> None:
    lines = list(csv.DictReader(io.StringIO(outputs["table.csv"])))
    names = [line["name"] for line in lines if line["method"] == "tent"]
    assert len(names) == len(HOSTILE)
    assert not [name for name in names if name.lstrip()[:1] in ("=", "+", "-", "@", "\t", "\r")]
    assert names[:5] == ["'=1+1", "'+1", "'-1+2", "'@SUM(A1)", "'\\t=1"]
    gains = [line["gain"] for line in lines if line["method"] == "tent"]
    assert all(float(gain) == float(gain) for gain in gains)  # numbers stay numbers, also those with a minus


def test_markdown_has_no_tags_links_or_broken_lines(outputs: dict[str, str]) -> None:
    text = outputs["table.md"]
    assert "<script" not in text
    assert "&amp;lt;b>" in text
    assert r"!\[x\](http://example.org)" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 1 + len(HOSTILE)  # titles, rule, source
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_a_protocol_cannot_leave_its_fence() -> None:
    first, *shown, last = fenced(["model      a ``` b", "`````", "\x1b[2J"])
    assert (first, last) == ("``````text", "``````")
    assert shown == ["model      a ``` b", "`````", r"\x1b[2J"]


@pytest.mark.parametrize("where", ["table.csv", "table.md", "shown"])
def test_no_command_reaches_a_terminal(outputs: dict[str, str], where: str) -> None:
    commands = [letter for letter in outputs[where] if not letter.isprintable() and letter != "\n"]
    assert commands == []
    assert r"\x1b" in outputs[where]


def test_a_table_shows_names_as_they_are(outputs: dict[str, str]) -> None:
    assert "[red]markup[/red]" in outputs["shown"]


def test_a_mistake_sends_no_command_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grid.toml").write_text('method = "tent\\u001b[2J"')
    path = tmp_path / "\x1b[2J"
    for command in (["bench", tmp_path / "grid.toml"], ["report", path, "--out", tmp_path / "page"]):
        assert "\x1b" not in refuses(capsys, command, r"\x1b[2J").err
