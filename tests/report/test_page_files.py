"""The files of a report: page, Markdown, LaTeX, CSV and figures."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from PIL import Image

from support.errors import refused
from support.stored_runs import three_methods, write_run
from testdg.report.bench import Section
from testdg.report.figures import FigureFiles
from testdg.report.page import make_report, write_report
from testdg.report.safe import render
from testdg.report.table import Cell, Table, TableColumn

EVIL = "<script>alert(1)</script>|`x`*_$\\%&#"


class Page(HTMLParser):
    """What a page holds: tags that are open, texts, and every address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
        values = dict(attrs)
        self.attributes |= values.keys()
        self.ids += [values["id"] or ""] if "id" in values else []
        self.addresses += [value or "" for key, value in attrs if key in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += f"{data} "


def read_page(files: dict[str, bytes]) -> Page:
    return Page(files["report.html"].decode())


def test_a_page_loads_no_other_file_and_its_tags_match(tmp_path: Path) -> None:
    page = read_page(make_report([three_methods(tmp_path)]).files)
    assert page.open == []
    assert page.seen.count("svg") == 2
    assert len(page.ids) == len(set(page.ids))
    inside = [address for address in page.addresses if address.startswith("#")]
    assert {address[1:] for address in inside} <= set(page.ids)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    for text in ("digits-c, continual", "batches of 2", "TestDG", "12.0", "± 2.8", "+15.0", "seed 1, 16.00 %"):
        assert text in page.text


def test_values_from_files_are_escaped_in_every_format(tmp_path: Path) -> None:
    more = {"data": EVIL, "model": EVIL, "benchmark": EVIL, "tuning": EVIL, "kind": EVIL}
    write_run(tmp_path / "a", "source", {EVIL: 10.0, "snow": 20.0}, **more)
    write_run(tmp_path / "b", EVIL, {EVIL: 10.0, "snow": 20.0}, settings={EVIL: EVIL}, **more)
    files = make_report([tmp_path], title=EVIL).files
    page = read_page(files)
    assert page.seen.count("script") == 1
    assert page.text.count("<script>alert(1)</script>") > 8
    assert "<script" not in files["report.md"].decode()
    latex = [line for line in files["report.tex"].decode().splitlines() if not line.startswith("% ")]
    assert sum(r"\$\textbackslash{}\%\&\#" in line for line in latex) > 5
    assert not any("$\\%" in line for line in latex)
    assert all(re.fullmatch(r"(figures/)?[a-z0-9.-]+", name) for name in files)


def test_names_from_files_cannot_end_an_attribute(tmp_path: Path) -> None:
    name, more = '" onclick="alert(1)', {"kind": "leave-one-out"}
    for number, (learnt, left) in enumerate([("fog", name), (name, "fog")]):  # captions name what is left out
        write_run(tmp_path / f"a{number}", "source", {learnt: 0.0}, held_out={left: 20.0}, **more)
        write_run(tmp_path / f"b{number}", "tent", {learnt: 0.0}, held_out={left: 10.0}, **more)
    page = read_page(make_report([tmp_path]).files)
    assert page.text.count(name) > 3
    assert not [attribute for attribute in page.attributes if attribute.startswith("on")]


TERMINAL = "\x1b[31mred\u202e"
SHEET = Table(EVIL, TERMINAL, [TableColumn(EVIL, True), TableColumn("x")], [(EVIL, [Cell(1.0), Cell(text=EVIL)])], EVIL)


@pytest.mark.parametrize("name", ["tables.md", "board.md", "board.html"])
def test_templates_escape_every_value_by_default(name: str) -> None:
    pictures = [FigureFiles("name", EVIL, {"svg": b"<svg></svg>"})]
    board = {"title": EVIL, "outcome": EVIL, "sheet": SHEET, "figures": pictures, "folder": "figures"}
    values = {
        "tables.md": {"sections": [Section(EVIL, [EVIL, TERMINAL, "```"], SHEET, EVIL)]},
        "board.md": {**board, "sections": []},
        "board.html": {**board, "streams": [(EVIL, SHEET, [(EVIL, EVIL)])]},
    }
    text = render(name, **values[name])
    assert not {"\x1b", "\u202e"} & {*text}
    outside = re.sub(r"(`{3,})text\n.*?\n\1", "", text, flags=re.DOTALL)  # a fence shows everything as it is
    assert "<script>alert" not in outside
    assert name.endswith("html") or not re.search(r"(?<!\\)[`*_]x", outside)


def test_a_value_that_a_template_does_not_get_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("board.html", title="x")


def test_the_python_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three_methods(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    guide = Path(__file__).parents[2] / "docs" / "report.md"
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    assert (tmp_path / "report" / "report.html").exists()
    assert len(names["numbers"]) == 5 * 2 * 4  # runs, domains, metrics


def test_the_same_runs_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    three_methods(tmp_path)
    folders = sorted(tmp_path.iterdir())
    assert make_report(folders).files == make_report(folders[::-1]).files


def test_figures_come_in_three_formats(tmp_path: Path) -> None:
    files = make_report([three_methods(tmp_path)]).files
    name = "figures/1-digits-c-continual-stream"
    assert {file for file in files if file.startswith(name)} == {f"{name}.{kind}" for kind in ("svg", "pdf", "png")}
    with Image.open(io.BytesIO(files[f"{name}.png"])) as picture:
        assert picture.size[0] == 1920
    assert files[f"{name}.pdf"].startswith(b"%PDF")
    drawn = "".join(ET.fromstring(files["figures/1-digits-c-continual-gains.svg"]).itertext())
    assert all(text in drawn for text in ("TENT", "+8.0", "-2.0", "+28.0", "fog"))


def test_changes_that_were_detected_are_marked(tmp_path: Path) -> None:
    three_methods(tmp_path)
    stream = "figures/1-digits-c-continual-stream.svg"
    marked = make_report([tmp_path])
    events = tmp_path / "c0" / "events.jsonl"
    events.write_text(events.read_text().replace('"change": true', '"change": false'))
    assert marked.files[stream] != make_report([tmp_path]).files[stream]
    captions = [picture.caption for picture in marked.groups[0].figures]
    assert "triangles: changes that the method detected" in captions[0]


def test_runs_without_events_or_source_have_fewer_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "tent", {"fog": 10.0})
    write_run(tmp_path / "b", "cotta", {"fog": 10.0})
    (tmp_path / "b" / "events.jsonl").unlink()
    (picture,) = make_report([tmp_path]).groups[0].figures
    assert "rows without events: 1" in picture.caption
    (tmp_path / "a" / "events.jsonl").unlink()
    assert make_report([tmp_path]).groups[0].figures == []


@pytest.mark.parametrize("line", ["{", json.dumps({"batch": 0}), "[]"])
def test_damaged_events_remove_only_their_curve(line: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a", "tent", {"fog": 10.0})
    (write_run(tmp_path / "b", "cotta", {"fog": 10.0}) / "events.jsonl").write_text(f"{line}\n")
    (picture,) = make_report([tmp_path]).groups[0].figures
    assert "rows without events: 1" in picture.caption


def test_markdown_has_the_same_numbers(tmp_path: Path) -> None:
    text = make_report([three_methods(tmp_path)]).files["report.md"].decode()
    assert "| method | fog | snow | mean | gain |\n| --- | ---: | ---: | ---: | ---: |\n" in text
    assert "| TestDG | **12.0 ± 2.8** | **18.0 ± 0.0** | **15.0 ± 1.4** | **+15.0** |" in text
    assert "- stream: batches of 2, reset once at the start, domain changes not announced" in text


def test_latex_has_rules_rounds_and_the_best_in_bold(tmp_path: Path) -> None:
    more = {"task": "segmentation", "kind": "cyclic", "benchmark": "acdc"}
    write_run(tmp_path / "a", "source", [{"fog": 50.0, "snow": 30.0}, {"fog": 50.0, "snow": 30.0}], **more)
    write_run(tmp_path / "b", "tent", [{"fog": 52.0, "snow": 29.0}, {"fog": 54.0, "snow": 28.0}], **more)
    text = make_report([tmp_path]).files["report.tex"].decode()
    assert r" & \multicolumn{3}{c}{round 1} & \multicolumn{3}{c}{round 2} & " in text
    assert r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}" in text
    assert r"TENT & \textbf{52.0} & 29.0 & \textbf{40.5} & \textbf{54.0} & 28.0 & \textbf{41.0} &" in text
    assert r"mean$\uparrow$" in text
    assert text.count(r"\resizebox{\ifdim\width>\linewidth") == text.count(r"\end{tabular}}") == 4  # all may shrink
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 4
    assert "Zhu et al. & 71.2 & 42.3" in text


def test_csv_has_all_digits_and_no_published_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "source", {"fog": 100 / 3, "=snow": 20.0}, benchmark="cifar10-c")
    lines = list(csv.DictReader(io.StringIO(make_report([tmp_path]).files["report.csv"].decode())))
    found = {line["column"]: line["mean"] for line in lines if line["table"] == "Domains"}
    assert found == {"fog": repr(100 / 3), "'=snow": "20.0", "mean": repr((100 / 3 + 20) / 2)}
    assert {line["method"] for line in lines} == {"Source"}


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    three_methods(tmp_path / "runs")
    report = write_report([tmp_path / "runs"], tmp_path / "new" / "report")
    written = [path for path in (tmp_path / "new" / "report").rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path / "new" / "report")) for path in written} == set(report.files)
    with refused("not-a-folder", "result.json", "--out"):
        write_report([tmp_path / "runs"], tmp_path / "runs" / "a" / "result.json")
    with refused("no-runs", tmp_path / "nowhere"):
        write_report([tmp_path / "runs", tmp_path / "nowhere"], tmp_path / "other")
    assert not (tmp_path / "other").exists()
