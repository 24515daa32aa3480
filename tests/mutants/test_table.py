"""A change of a text that a mutant replaces carries the mutant along."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.mutants.source_copy import ROOT
from tests.mutants.table import MUTANTS


def test_every_mutant_can_be_made_and_is_looked_for_in_tests_that_are_there() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    assert [name for name, count in names.items() if count > 1] == []
    for mutant in MUTANTS:
        mutated = mutant.mutated((ROOT / mutant.file).read_text())
        if mutant.file.endswith(".py"):
            ast.parse(mutated, mutant.name)
        if mutant.where[0] != "simulate":
            missing = [path for path in mutant.where if not Path(ROOT, path.split("::")[0]).exists()]
            assert not missing, mutant.name
