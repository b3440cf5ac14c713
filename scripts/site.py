"""Pages of the site that are not in docs/: from the rest of the repository, and made from the code (mkdocs hooks).

Links in the Markdown files work on GitHub; the hooks convert them to those of the site.
"""

import os
import re
from importlib import import_module
from inspect import getdoc
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from testdg.methods import Adapter, methods, order_for_display

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)")
ELSEWHERE = {"README.md": "index.md", "results/README.md": "results/files.md"}  # files with another place on the site
LINKED = InclusionLevel.NOT_IN_NAV  # it need not be there
FIRST = ["testdg_aligned", "testdg", "align", "source"]
PACKAGES = ["methods", "core.guard", "models", "data.benchmarks", "runs", "runs.training.fine_tune"]
PACKAGES += ["studies", "report", "testing"]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: all methods, and the whole reference."""
    sheets = [f"methods/{path.name}" for path in sorted((ROOT / "docs/methods").glob("*.md"), key=_order)]
    pages = {"Methods": sheets, "Reference": [f"reference/{name}.md" for name in PACKAGES]}
    config.nav = [_complete(section, pages) for section in config.nav or []]
    return config


def _order(sheet: Path) -> tuple[int, str]:
    return (FIRST.index(sheet.stem) if sheet.stem in FIRST else len(FIRST), sheet.stem)


def _complete(section: dict[str, Any], pages: dict[str, list[str]]) -> dict[str, Any]:
    ((title, entries),) = section.items()
    return {title: [entries, *pages[title]]} if isinstance(entries, str) else section


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages, and every file of the repository that a page links to."""
    made = {"methods/index.md": method_list(), "reference/index.md": reference_list()}
    made |= {f"reference/{name}.md": reference(f"testdg.{name}") for name in PACKAGES}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    waiting = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
    waiting += [target for file in files.documentation_pages() for target in _outside(file)]
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(_on_site(path)) is None:
            file = File.generated(config, _on_site(path), abs_src_path=str(ROOT / path), inclusion=LINKED)
            files.append(file)
            waiting += _outside(file) if path.endswith(".md") else []
    return files


def _outside(file: File) -> list[str]:
    """The files outside docs/ that a page links to."""
    targets = (_resolve(file.src_uri, match[1]) for match in LINK.finditer(file.content_string))
    return [path for path in targets if (ROOT / path).is_file() and not path.startswith("docs/")]


def _in_repository(place: str) -> str:
    """Path of a page of the site in the repository."""
    for path, found in ELSEWHERE.items():
        if place == found:
            return path
    outside = (ROOT / place).is_file() and not (ROOT / "docs" / place).exists()
    return place if outside else f"docs/{place}"


def _on_site(path: str) -> str:
    """Path of a file of the repository on the site."""
    return ELSEWHERE.get(path) or path.removeprefix("docs/")


def _resolve(place: str, link: str) -> str:
    """The file of the repository that a link refers to; for a folder, its index page."""
    path = os.path.normpath(PurePosixPath(_in_repository(place)).parent / link)
    for page in ("index.md", "README.md"):
        if (ROOT / path / page).is_file():
            return f"{path}/{page}"
    return f"{path}/index.md" if path == "docs/methods" else path


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert links to those of the site; add facts, settings and presets to the page of a method."""
    place = page.file.src_uri
    if place.startswith("methods/") and (kind := methods().get(PurePosixPath(place).stem)):
        heading, _, rest = markdown.partition("\n")
        markdown = f"{heading}\n\n{facts(kind)}\n{rest.rstrip()}\n\n{code_part(kind)}"

    def turned(match: re.Match[str]) -> str:
        path = _on_site(_resolve(place, match[1]))
        return f"]({os.path.relpath(path, PurePosixPath(place).parent)}{match[2] or ''})"

    made = not (ROOT / _in_repository(place)).exists()
    return markdown if made else LINK.sub(turned, markdown)


# Pages made from the code


def facts(kind: type[Adapter]) -> str:
    """Name, tasks and requirements of a method."""
    parts = [f"`{kind.name}`", " and ".join(kind.tasks), f"needs {kind.needs or 'nothing'}"]
    parts += [f"source data for {kind.source_data}" if kind.source_data else "no source data"]
    ours = " and ".join(kind.reconstructed())
    parts += [f"a reconstruction for {ours}: no code of the authors exists"] if ours else []
    return '!!! info ""\n    ' + " · ".join(parts) + "\n"


def code_part(kind: type[Adapter]) -> str:
    """Example, settings and presets of a method."""
    example = (getdoc(kind) or "").partition("Examples:\n")[2]
    shown = f"## Example\n\n```pycon\n{_dedent(example)}\n```\n\n" if example else ""
    rows = [
        [f"`{one['name']}`", _value(one["default"]), one["type"], one["help"]]
        for one in order_for_display(kind.Settings)
    ]
    settings = _table(["setting", "default", "values", "meaning"], rows)
    presets = [
        [f"`{name}`", ", ".join(f"`{key}={_plain(value)}`" for key, value in values.items())]
        for name, values in kind.presets.items()
    ]
    chosen = "\n\n## All presets\n\n" + _table(["preset", "settings"], presets) if presets else ""
    return f"{shown}## All settings\n\n{settings}{chosen}\n"


def _dedent(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.rstrip().splitlines())


def _plain(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _value(value: Any) -> str:
    return f"`{_plain(value)}`"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def method_list() -> str:
    """A table of all methods, with a sentence each."""
    kinds = sorted(methods().values(), key=lambda kind: _order(Path(kind.name)))
    rows = [[f"[{kind.title}]({kind.name}.md)", _sentence(kind), kind.citation.rpartition(", ")[2]] for kind in kinds]
    return (
        f"# Methods\n\nOne interface, {len(rows)} methods.\n\n"
        + _table(["method", "what it does", "from"], rows)
        + "\n"
    )


def _sentence(thing: Any) -> str:
    return " ".join((getdoc(thing) or "").partition("\n\n")[0].split())


def reference_list() -> str:
    """A table of the packages, and the public names of `testdg`."""
    rows = [[f"[`testdg.{name}`]({name}.md)", _sentence(import_module(f"testdg.{name}"))] for name in PACKAGES]
    return f"# Reference\n\n{_table(['package', 'what is in it'], rows)}\n\n{_members('testdg')}"


def reference(package: str) -> str:
    """The public names of a package."""
    return f"# {package}\n\n{_sentence(import_module(package))}\n\n{_members(package)}"


def _members(package: str) -> str:
    module = import_module(package)
    names = getattr(module, "__all__", [name for name in vars(module) if _own(module, name)])
    names = [name for name in names if not name.startswith("__")]
    return "\n\n".join(f"::: {package}.{name}" for name in names) + "\n"


def _own(module: Any, name: str) -> bool:
    """Whether a name is public and defined in the module."""
    return not name.startswith("_") and getattr(getattr(module, name), "__module__", None) == module.__name__
