"""The site is built strictly, contains what the code declares, and loads nothing from other servers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from testdg.methods import describe_settings, methods

pytest.importorskip("material", reason="mkdocs-material is not installed (pip install 'testdg[docs]')")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_setting_stands_on_the_page_of_its_method(site: Path) -> None:
    for name, kind in methods().items():
        page = (site / "methods" / f"{name}.html").read_text(encoding="utf-8")
        rows = set(re.findall(r"<td><code>(\w+)</code></td>", page))
        assert {one["name"] for one in describe_settings(kind.Settings)} <= rows, name


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = (
        r'<(?:script|img|iframe|source)[^>]+src="?(?:https?:)?//|<link[^>]+rel="?stylesheet[^>]+href="?(?:https?:)?//'
    )
    for page in site.rglob("*.html"):
        assert not re.search(loads, page.read_text(encoding="utf-8")), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_the_first_page_is_the_readme_and_public_things_are_referred_to(site: Path) -> None:
    assert "A vision model that was trained on clean pictures" in (site / "index.html").read_text(encoding="utf-8")
    assert 'id="testdg.adapt"' in (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert (site / "SECURITY.html").is_file()
