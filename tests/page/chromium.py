"""A headless Chromium: of the environment (`make page-shots` unpacks it there), or playwright's own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

UNPACKED = Path(os.environ.get("CHROMIUM", Path(sys.prefix) / "chromium"))
"""A folder with Debian's packages."""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright; skips the test where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright; `make page-shots` installs it")
    with api.sync_playwright() as playwright:
        program = UNPACKED / "usr/lib/chromium/chromium-headless-shell"
        libraries = UNPACKED / "usr/lib/x86_64-linux-gnu"
        options: dict[str, Any] = {}
        if program.exists():
            path = f"{libraries}:{libraries}/pulseaudio"
            options = {"executable_path": str(program), "env": {**os.environ, "LD_LIBRARY_PATH": path}}
        elif not Path(playwright.chromium.executable_path).exists():
            pytest.skip(
                "no Chromium; `make page-shots` unpacks Debian's, or: playwright install chromium-headless-shell"
            )
        browser = playwright.chromium.launch(args=["--no-sandbox"], **options)
        try:
            yield browser
        finally:
            browser.close()
