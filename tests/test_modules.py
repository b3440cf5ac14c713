"""docs/modules.md lists every module by the first line of its docstring; `python tests/test_modules.py` rewrites it."""

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, PAGE = ROOT / "src" / "testdg", ROOT / "docs" / "modules.md"
HEAD = """# Modules

Every module by the first line of its own description. [Design](design.md) says how they hang together.
"""


def first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path.relative_to(ROOT)} has no docstring"
    return text.splitlines()[0]


def page() -> str:
    folders = sorted({path.parent for path in PACKAGE.rglob("*.py")})
    sections = []
    for folder in folders:
        about = first_line(folder / "__init__.py")
        modules = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]
        rows = [textwrap.fill(f"- `{path.name}`: {first_line(path)}", 120, subsequent_indent="  ") for path in modules]
        name = folder.relative_to(PACKAGE.parent).as_posix()
        sections.append("\n".join([f"## {name}/", "", about, *(["", *rows] if rows else [])]))
    return "\n\n".join([HEAD.rstrip(), *sections]) + "\n"


def test_the_list_of_modules_is_complete() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python tests/test_modules.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
