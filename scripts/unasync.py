"""Derive the blocking client from the asynchronous one: `python scripts/unasync.py [--check]`.

The client is written once, in `client/dataplane_client/_async`. A list of word-for-word replacements turns each module
into its twin in `_sync`. `runtime.py` has the code that cannot be derived and is written twice. --check changes nothing
and exits with 1 if a twin is stale.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "client" / "dataplane_client"
WRITTEN_TWICE = {"runtime.py"}

REPLACEMENTS = [
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bimport Awaitable, Callable\b", "import Callable"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\bAsync(DataPlaneClient|Claim|Group|Session|Transport|GrpcCalls|LocalCalls)\b", r"\1"),
    (r"\b_async\b", "_sync"),
    (
        r'^"""The client, written once\. .*\n"""$',
        '"""The blocking client, derived from `_async` by `scripts/unasync.py`. Do not edit."""',
    ),
]


def twin_of(source: Path) -> str:
    text = source.read_text()
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    for step in (["check", "--select=I", "--fix-only"], ["format"]):
        command = [sys.executable, "-m", "ruff", *step, "--quiet", "--stdin-filename", str(source), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main(check: bool) -> int:
    stale = 0
    for source in sorted((PACKAGE / "_async").glob("*.py")):
        if source.name in WRITTEN_TWICE:
            continue
        twin, text = PACKAGE / "_sync" / source.name, twin_of(source)
        if not twin.exists() or twin.read_text() != text:
            stale += 1
            print(f"{twin.name} {'is stale' if check else 'derived'}")
            if not check:
                twin.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv))
