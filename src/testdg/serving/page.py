"""The page: one file, no network; its policy allows its own script and style alone, by their hashes."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

PAGE = (files("testdg.serving") / "page.html").read_text(encoding="utf-8")


def _hashes(tag: str) -> str:
    parts = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


PAGE_POLICY = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
"""Nothing else runs, nothing else is fetched, and no text can become markup."""
