"""Every guarantee that the documents name is proved by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text()
FOLDERS = "integrations|core|semantics|integration|client|server|trainer_adapter|deploy|repository"
NAMED = sorted(set(re.findall(rf"`((?:{FOLDERS})/[\w/]+\.py(?:::\w+)?|conftest\.py)`", SEMANTICS)))


def test_every_test_that_the_guarantees_name_exists() -> None:
    assert (len(NAMED) > 30, [named for named in NAMED if not exists(named)]) == (True, [])


def exists(named: str) -> bool:
    file, _, name = named.partition("::")
    path = ROOT / file if file.startswith("integrations/") else ROOT / "tests" / file
    return path.is_file() and bool(not name or re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE))


def test_every_row_of_a_table_of_guarantees_names_a_test() -> None:
    rows = [line for line in SEMANTICS.splitlines() if line.startswith("| ") and "promise | proved by" not in line]
    guarantees = [row for row in rows if row.count("|") == 3]
    assert len(guarantees) > 30
    assert [row for row in guarantees if not re.search(r"`[\w/]+\.py", row)] == []
