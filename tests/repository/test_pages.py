"""The Python blocks of docs/*.md run and print what the pages say, and what the pages point at exists."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from scripts.page_blocks import ADDRESS, PAGES, ROOT, programs_of

from dataplane_server.core.calls.causes import CAUSES
from dataplane_server.testing import running_server

TESTED_ELSEWHERE = {ROOT / "README.md", ROOT / "docs" / "observability.md"}  # in processes of their own
PROGRAMS = [
    pytest.param(program, id=f"{page.stem}-{number}")
    for page in PAGES
    if page not in TESTED_ELSEWHERE
    for number, program in enumerate(programs_of(page))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_blocks_of_a_page_print_what_it_says(
    program: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # dataclasses look their module up
    with running_server() as address:
        for code, printed in program:
            exec(compile(code.replace(ADDRESS, address), "<page>", "exec"), vars(module))  # noqa: S102  # ours
            assert capsys.readouterr().out == printed


def test_every_link_and_path_of_the_pages_leads_somewhere() -> None:
    assert {page.name: broken for page in PAGES if (broken := list(broken_links(page)))} == {}


def broken_links(page: Path) -> Iterator[str]:
    text = page.read_text()
    for link in (link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link):
        name, _, anchor = link.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            yield link
    folders = "tests|docs|proto|examples|benchmarks|deploy|scripts|client|dataplane_server|trainer_adapter|integrations"
    paths = re.findall(rf"`((?:{folders})/[\w./-]+)`", text)
    yield from (path for path in paths if not any((root / path).exists() for root in (ROOT, *roots())))


def test_the_page_of_causes_has_all_in_the_words_of_the_server() -> None:
    lines = (ROOT / "docs" / "why.md").read_text().splitlines()
    told = [f"| `{cause}` | {advice.meaning} | {advice.next_step} |" for cause, advice in CAUSES.items()]
    assert [line for line in lines if line.startswith("| `")] == told


@cache
def anchors_of(page: Path) -> set[str]:
    """What the headings of a page are linked by, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def roots() -> list[Path]:
    """Where the paths of the pages begin: in the repository, or in a folder that holds a package."""
    return [ROOT / folder for folder in ("client", "dataplane_server", "trainer_adapter", "tests")]
