"""The documentation's site is built without a warning, its links lead somewhere, and it needs no other host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from scripts.page_blocks import ROOT

pytest.importorskip("material", reason="no mkdocs-material; `make docs` installs it")
pytestmark = [pytest.mark.xdist_group("site"), pytest.mark.long]


class Html(HTMLParser):
    """anchors: ids in the page. links: what its links lead to. loads: what a browser fetches for it. texts: of its
    titles and paragraphs, by element.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loads = {""}, set[str](), set[str]()
        self.texts: dict[str, list[str]] = {"title": [], "h1": [], "p": []}
        self._element = ""
        self.feed(file.read_text())

    def handle_data(self, data: str) -> None:
        if self._element:
            self.texts[self._element][-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == self._element:
            self._element = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in self.texts:
            self._element = tag
            self.texts[tag].append("")
        values = dict(attributes)
        self.anchors.add(values.get("id") or "")
        if tag == "a":
            self.links.add(values.get("href") or "")
        elif address := values.get("src") or values.get("href"):
            self.loads.add(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's advertisement
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    return {file: Html(file) for file in site.rglob("*.html") if file.name != "404.html"}


def test_every_page_of_the_docs_and_of_the_root_is_in_the_site(site: Path) -> None:
    names = {file.relative_to(ROOT / "docs").with_suffix("").as_posix() for file in (ROOT / "docs").rglob("*.md")}
    names = names - {"README"} | {"index", "overview", "security", "changelog", "contributing", "robustness"}
    assert {file.relative_to(site).with_suffix("").as_posix() for file in site.rglob("*.html")} == names | {"404"}


def test_no_two_pages_have_one_title_or_begin_alike(pages: dict[Path, Html]) -> None:
    for element in ("title", "h1", "p"):
        firsts = [next(iter(page.texts[element]), "") for page in pages.values()]
        assert sorted(first for first in firsts if firsts.count(first) > 1) == []


def test_every_link_of_the_site_leads_to_a_place_in_it(pages: dict[Path, Html]) -> None:
    assert [broken for file, page in pages.items() for broken in broken_links(file, page, pages)] == []


def broken_links(file: Path, page: Html, pages: dict[Path, Html]) -> Iterator[str]:
    for link in page.links - {""}:
        path, anchor = urldefrag(unquote(link))
        there = (file.parent / path).resolve() if path else file
        if there.is_dir():
            there /= "index.html"
        if there not in pages or anchor not in pages[there].anchors:
            yield f"{file.name}: {link}"


def test_a_browser_fetches_nothing_from_elsewhere(pages: dict[Path, Html]) -> None:
    loads = {(file, address) for file, page in pages.items() for address in page.loads}
    assert [address for _, address in loads if urlsplit(address).netloc] == []
    assert [address for file, address in loads if not (file.parent / urlsplit(address).path).exists()] == []


def test_a_link_to_a_file_that_is_no_page_is_plain_text_unless_the_repository_has_an_address() -> None:
    from mkdocs.config import load_config
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.pages import Page
    from scripts.site_links import on_page_markdown

    config = load_config(str(ROOT / "mkdocs.yml"))
    trl, security = (
        File(name, config.docs_dir, config.site_dir, config.use_directory_urls)
        for name in ("adopting/trl.md", "security.md")
    )
    page, files = Page(None, trl, config), Files([trl, security])
    text = "[a](../../examples/grpo/run.py) [b](../../SECURITY.md#who) [c](trl.md) `x[0](y)`"
    assert on_page_markdown(text, page, config, files) == "a [b](../security.md#who) [c](trl.md) `x[0](y)`"
    config.repo_url = "https://example.org/repo"
    assert on_page_markdown("[a](../../Makefile)", page, config, files) == f"[a]({config.repo_url}/blob/main/Makefile)"
