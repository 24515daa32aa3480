"""All mutants, part by part; those of `dying` only a server that dies has, and the simulation finds them."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.mutant import read_mutants

_PARTS = ("core", "server", "client", "frameworks", "trainer", "device", "dying")

MUTANTS = tuple(mutant for part in _PARTS for mutant in read_mutants(Path(__file__).with_name(f"{part}.txt")))
