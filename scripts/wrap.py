"""Wrap the paragraphs of Markdown files at 120 characters where a line is longer: `python scripts/wrap.py FILE...`.

Tables, headings, code and paragraphs that fit are left as they are.
"""

import re
import sys
import textwrap
from pathlib import Path

WIDTH = 120
ITEM = re.compile(r"(\s*(?:[-*]|\d+\.) )")
FIXED = re.compile(r"\s*\||#|```|    |---|<|!!!")


def wrap(text: str) -> str:
    """The same text, with no long line in a paragraph or an item of a list."""
    done: list[str] = []
    block: list[str] = []
    code = False
    for line in text.split("\n"):
        code ^= line.startswith("```")
        apart = code or not line.strip() or FIXED.match(line) is not None
        if apart or ITEM.match(line):
            done += _wrapped(block)
            block = [] if apart else [line]
            done += [line] if apart else []
        else:
            block.append(line)
    return "\n".join([*done, *_wrapped(block)])


def _wrapped(block: list[str]) -> list[str]:
    if max(map(len, block), default=0) <= WIDTH:
        return block
    item = ITEM.match(block[0]) or re.match(r"(\s*)", block[0])
    assert item is not None
    first = item[1]
    words = " ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
        break_long_words=False,
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(wrap(path.read_text(encoding="utf-8")), encoding="utf-8")
