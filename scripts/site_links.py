"""A hook of mkdocs: the site has pages of the repository's root, and links that are right on GitHub are right in it.

The pages of docs/ link to files of the repository. In the site, a link to a file that is a page leads to that page. Any
other leads to the repository, if mkdocs.yml has a repo_url, and is plain text without one.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "ROBUSTNESS.md": "robustness.md",
    "SECURITY.md": "security.md",
}
"""Files of the root, and the pages that they are in the site."""

_STYLE = """\
.md-grid { max-width: 74rem }
.md-content__inner > :is(p, ul, ol) { max-width: 39rem }
.md-typeset table:not([class]) th { min-width: 0 }
@media (min-width: 60em) {
  .md-typeset :is(th, td:first-child, td a) code { white-space: nowrap }
}
"""
"""Room for code of 100 columns and for tables; lines of prose stay short."""

_FILES = {page: file for file, page in ROOT_PAGES.items()}
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    files.append(File.generated(config, "site.css", content=_STYLE))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = _FILES.get(page.file.src_uri) or f"docs/{page.file.src_uri}"

    def rewritten(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, hash_sign, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not path or not (ROOT / file).exists():
            return link[0]
        if (uri := ROOT_PAGES.get(file, file.removeprefix("docs/"))) in files.src_uris:
            return f"{mark}[{text}]({_relative(uri, page)}{hash_sign}{anchor})"
        return f"[{text}]({config.repo_url}/blob/main/{file})" if config.repo_url else text

    return _LINK.sub(rewritten, markdown)


def _relative(uri: str, page: Page) -> str:
    return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
