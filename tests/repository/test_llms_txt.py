"""docs/llms.txt names every page of the documentation, for programs that read it."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_it_names_every_page_once_and_no_other() -> None:
    links = re.findall(r"^- \[[^\]]+\]\(([^)#]+)", (DOCS / "llms.txt").read_text(), flags=re.MULTILINE)
    named = [target for target in links if not target.startswith("../")]
    assert sorted(named) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    assert [target for target in links if not (DOCS / target).exists()] == []
