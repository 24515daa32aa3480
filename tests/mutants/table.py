"""All mutants: those of the parts, and the bugs that only a server that dies has, which the simulation finds."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.mutant import Mutant, read_mutants
from tests.simulate.bugs import BUGS

_SERVER = "dataplane_server/dataplane_server"
_OF_DYING_SERVERS = tuple(
    Mutant(
        f"dying: {name}",
        "after a kill or a loss of power, what was acknowledged is lost, or comes twice",
        f"{_SERVER}/{bug.module.replace('.', '/')}.py",
        bug.right,
        bug.wrong,
        ("simulate", str(bug.seeds)),
    )
    for name, bug in BUGS.items()
)

_PARTS = ("core", "server", "client", "frameworks", "trainer", "device")

MUTANTS = (
    *(mutant for part in _PARTS for mutant in read_mutants(Path(__file__).with_name(f"{part}.txt"))),
    *_OF_DYING_SERVERS,
)
