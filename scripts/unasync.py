"""Derive the blocking client from the asynchronous one: `python scripts/unasync.py [--check] [PACKAGE]`.

The client is written once, in `_async` of the package (default: `client/dataplane_client/_verbs`). A list of
replacements turns each module into its twin in `_sync`. `runtime.py` holds what cannot be derived and is written twice.
--check changes nothing and exits with 1 when a twin differs from what the script would write. A replacement that
matches nowhere in `_async` is an error, too: remove it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "client" / "dataplane_client" / "_verbs"
SETTINGS = ROOT / "pyproject.toml"
WRITTEN_TWICE = {"runtime.py"}

REPLACEMENTS = [
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bimport Awaitable, Callable\b", "import Callable"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (
        r"\bAsync(DataPlaneClient|Handle|Claim|Group|Session|Transport|Batching|PendingPut|Connections|(?:Grpc|Frame)Calls|(?:Arena|Line)?Carrier)\b",
        r"\1",
    ),
    (r"\bopen_aio_channel\b", "open_channel"),
    (r"\b_async\b", "_sync"),
    (
        r'^"""The client, written once\. .*"""$',
        '"""The blocking client, derived from `_async` by `scripts/unasync.py`. Do not edit."""',
    ),
]


def derive_twins(sources: Iterable[Path]) -> tuple[dict[str, str], list[str]]:
    """The texts of the twins, by the names of their files, and the patterns that match in no source."""
    unused = {pattern for pattern, _ in REPLACEMENTS}
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            text = source.read_text()
            for pattern, replacement in REPLACEMENTS:
                text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
                if count:
                    unused.discard(pattern)
            Path(folder, source.name).write_text(text)
        for step in (["check", "--select=I", "--fix-only"], ["format"]):
            command = [sys.executable, "-m", "ruff", *step, "--quiet", "--no-cache", "--config", str(SETTINGS), folder]
            subprocess.run(command, cwd=ROOT, check=True)  # the sources that the settings name are in it
        return {twin.name: twin.read_text() for twin in sorted(Path(folder).iterdir())}, sorted(unused)


def main(package: Path, check: bool) -> int:
    stale = 0
    sources = [source for source in (package / "_async").glob("*.py") if source.name not in WRITTEN_TWICE]
    twins, unused = derive_twins(sources)
    for name, text in twins.items():
        twin = package / "_sync" / name
        if not twin.exists() or twin.read_text() != text:
            stale += 1
            print(f"{name} {'is stale' if check else 'derived'}")
            if not check:
                twin.write_text(text)
    for pattern in unused:
        print(f"the replacement of {pattern!r} matches nothing in {package / '_async'}: remove it")
    return 1 if unused or (check and stale) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Derive the blocking client from the asynchronous one.")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 when a twin is stale")
    parser.add_argument("package", nargs="?", type=Path, default=PACKAGE)
    arguments = parser.parse_args()
    raise SystemExit(main(arguments.package, arguments.check))
