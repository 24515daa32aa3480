"""The Python blocks of README.md and docs/*.md: `python scripts/page_blocks.py FOLDER` writes each program into a
module of the folder, for the type checker.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
ADDRESS = "unix:///tmp/dataplane.sock"
"""The server of all examples."""

_BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n(?:[^\n`]*:\n\n)?```text\n(.*?)```)?", flags=re.DOTALL)

Block = tuple[str, str]
"""Code, and what the page says that it prints, or ""."""


def programs_of(page: Path) -> list[list[Block]]:
    """The programs of a page. A block that begins with an import starts a program, which the blocks after it continue.

    What a block prints is the text block after it, with at most one line that ends with a colon between the two.
    """
    programs: list[list[Block]] = []
    for code, printed in _BLOCK.findall(page.read_text()):
        if code.startswith(("import ", "from ")) or not programs:
            programs.append([])
        programs[-1].append((code, printed))
    return programs


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for page in PAGES:
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).lower().replace("-", "_")
        for number, program in enumerate(programs_of(page)):
            (folder / f"{name}_{number}.py").write_text("\n\n".join(code for code, _ in program))


if __name__ == "__main__":
    main()
