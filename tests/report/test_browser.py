"""The page in a real browser: it opens, sorts, turns dark, asks for nothing and complains about nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from support.browser import PROGRAM, Browser
from support.stored_runs import three_methods
from testdg.report.page import write_report

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
DOMAINS = "document.querySelectorAll('table')[1]"
ROWS = f"[...{DOMAINS}.tBodies[0].rows].map(row => row.cells[0].textContent)"
PAPER = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    write_report([three_methods(folder / "runs")], folder / "report")
    with Browser(folder / "profile") as found:
        found.prefer("light")
        found.open(folder / "report" / "report.html")
        yield found
        assert found.complaints() == []


def header(number: int) -> str:
    return f"{DOMAINS}.querySelectorAll('thead button')[{number}]"


def test_a_click_on_a_header_sorts_and_a_second_click_reverses(browser: Browser) -> None:
    assert browser.run(ROWS) == ["Source", "TENT", "TestDG"]
    browser.click(header(1))  # fog: 40, 32, 12
    assert browser.run(ROWS) == ["TestDG", "TENT", "Source"]
    assert browser.run(f"{header(1)}.closest('th').ariaSort") == "ascending"
    browser.click(header(1))
    assert browser.run(ROWS) == ["Source", "TENT", "TestDG"]
    assert browser.run(f"{header(1)}.closest('th').ariaSort") == "descending"


def test_the_keyboard_sorts_too_and_empty_cells_stay_last(browser: Browser) -> None:
    for expected in (["TENT", "TestDG", "Source"], ["TestDG", "TENT", "Source"]):
        browser.run(f"{header(4)}.focus()")  # gain: none, 3, 15
        browser.press_enter()
        assert browser.run(ROWS) == expected
    assert browser.run(f"{DOMAINS}.querySelectorAll('[aria-sort]').length") == 1


def test_the_page_follows_the_system_theme_and_the_button_overrides_it(browser: Browser) -> None:
    light = browser.run(PAPER)
    browser.prefer("dark")
    dark = browser.run(PAPER)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(22, 24, 28)")
    browser.click("document.getElementById('theme')")
    assert browser.run(PAPER) == light
    assert browser.run("document.getElementById('theme').textContent") == "Dark"
    browser.click("document.getElementById('theme')")
    assert browser.run(PAPER) == dark


def test_a_picture_of_the_page_shows_the_figures_in_the_colour_of_the_text(browser: Browser, tmp_path: Path) -> None:
    ink = browser.run("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert ink == browser.run("getComputedStyle(document.body).color")
    browser.screenshot(tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.size[1] > 1000
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24) or []}
    assert len(colours) > 50


def test_nothing_is_wider_than_the_window(browser: Browser) -> None:
    for width in (1280, 400):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        assert browser.run("document.documentElement.scrollWidth") == width
