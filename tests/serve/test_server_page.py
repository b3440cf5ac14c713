"""The page in a real browser: needs playwright and a chromium, by the name of the system or in CHROMIUM."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from support.serving import digits
from testdg.serve.security import Token

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]
Listen = Callable[..., httpx.Client]
SECRET = "a-long-secret-of-our-own"


@pytest.fixture
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as found:
        chromium = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def open_page(browser: Any, client: httpx.Client, **options: Any) -> tuple[Any, list[str]]:
    page, complaints = browser.new_context(**options).new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(str(client.base_url))
    return page, complaints


def show(client: httpx.Client, scene: str, batches: int, start: int = 0) -> None:
    for number in range(batches):
        files = [("p", data) for data in digits(32, scene, start + 32 * number)]
        assert client.post("/predict", params={"wait": True}, files=files).status_code == 200


def test_the_page_shows_changes_and_decisions_and_rolls_back(browser: Any, listen: Listen) -> None:
    client = listen()
    show(client, "clean", 3)
    page, complaints = open_page(browser, client)
    playwright.expect(page.locator("#link")).to_have_text("live")
    page.keyboard.press("s")
    page.keyboard.type("<b>before</b>")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#said")).to_have_text("snapshot 1")
    show(client, "fog", 3)
    show(client, "fog", 1, 64)  # the same frames
    log = page.locator("#log")
    playwright.expect(log).to_contain_text("the method detected new conditions")
    playwright.expect(log).to_contain_text("skip: the same frame again")
    playwright.expect(log).to_contain_text("snapshot 1: <b>before</b>")
    playwright.expect(page.locator("#pictures figure").first).to_be_visible()
    assert page.locator("svg line.m-change").count() >= 1
    assert page.locator("svg line.m-guard").count() >= 1
    page.click("[data-action=rollback]")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#said")).to_have_text("back to snapshot 1")
    playwright.expect(log).to_contain_text("back to snapshot 1")
    assert complaints == []


def test_the_page_asks_for_the_token_once(browser: Any, listen: Listen) -> None:
    client = listen(Token(SECRET))
    client.headers["authorization"] = f"Bearer {SECRET}"
    show(client, "clean", 1)
    page, _ = open_page(browser, client)
    for given in ("wrong", SECRET):
        playwright.expect(page.locator("#question")).to_contain_text("token")
        playwright.expect(page.locator("#answer")).to_be_focused()
        page.keyboard.type(given)
        page.keyboard.press("Enter")
        page.wait_for_timeout(1200)
    playwright.expect(page.locator("#link")).to_have_text("live")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.reload()
    playwright.expect(page.locator("#link")).to_have_text("live")
    assert SECRET not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_light_and_dark_mode(browser: Any, listen: Listen, scheme: str) -> None:
    client = listen()
    show(client, "clean", 1)
    page, complaints = open_page(browser, client, viewport={"width": 360, "height": 700}, color_scheme=scheme)
    playwright.expect(page.locator("#link")).to_have_text("live")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark is (scheme == "dark")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'") is not dark
    assert complaints == []


def test_the_page_shows_a_full_disk_and_catches_up_after_a_lost_connection(browser: Any, listen: Listen) -> None:
    client = listen()
    show(client, "clean", 2)
    page, _ = open_page(browser, client)
    playwright.expect(page.locator("#link")).to_have_text("live")
    client.service.storage.problems["states"] = "states are not being saved: No space left on device"
    playwright.expect(page.locator("#problems")).to_contain_text("No space left")
    page.context.set_offline(True)
    page.evaluate("source.close(); source.onerror()")  # what the browser does when it detects this
    show(client, "fog", 3)
    playwright.expect(page.locator("#link")).to_contain_text("lost")
    page.context.set_offline(False)
    playwright.expect(page.locator("#link")).to_have_text("live", timeout=15000)
    playwright.expect(page.locator("#log")).to_contain_text("the method detected new conditions")
