"""All mutants: those of the parts, and the bugs that only a server that dies has, which the simulation finds."""

from __future__ import annotations

from tests.mutants import client, core, device, frameworks, server, trainer
from tests.mutants.mutant import Mutant
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

MUTANTS = (
    *core.MUTANTS,
    *server.MUTANTS,
    *client.MUTANTS,
    *frameworks.MUTANTS,
    *trainer.MUTANTS,
    *device.MUTANTS,
    *_OF_DYING_SERVERS,
)
