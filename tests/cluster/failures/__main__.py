"""Kills parts of a cluster under load: `python -m tests.cluster.failures --help`.

Rounds of a minute follow each other, each with another seed, until there were enough kills. The first violation ends it
all; the files of its round stay.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.cluster.failures.campaigns import Clients, campaign
from tests.cluster.failures.local_cluster import LocalCluster, pid_of, ray_nodes
from tests.cluster.failures.pauses import told

_NODES = 3
_SHOWN = 20
_LONGEST_S = 5.0


class CoordinatorKills:
    """Kills of the coordinator's process."""

    title = "until the coordinator serves again"
    rows_vanish = mirrored = False

    def __init__(self) -> None:
        self.took: list[float] = []

    def strike(self, cluster: LocalCluster, clients: Clients, dice: random.Random) -> None:
        self.took.append(cluster.kill_coordinator())


class NodeKills(CoordinatorKills):
    """Kills of nodes, but for the first; a new one comes for each."""

    title = "until the dead node's rows are lost"
    rows_vanish = True

    def strike(self, cluster: LocalCluster, clients: Clients, dice: random.Random) -> None:
        victim = dice.choice([node for node in clients.ray_nodes if node != cluster.home])
        clients.leave(victim)
        self.took.append(cluster.kill_node(victim))
        clients.join(cluster.add_node())


class MirroredNodeKills(NodeKills):
    """Kills of nodes that have mirrors, half of them with the coordinator at the same time."""

    title = "until the dead node is read from its mirror"
    rows_vanish, mirrored = False, True

    def strike(self, cluster: LocalCluster, clients: Clients, dice: random.Random) -> None:
        cluster.wait_for_mirrors()
        if dice.random() < 0.5:
            os.kill(pid_of(cluster.coordinator), signal.SIGKILL)
        super().strike(cluster, clients, dice)


def kill(kind: CoordinatorKills, kills: int, seconds: float, seed: int) -> None:
    """Rounds, until there were enough kills. The files of a round in which a client paused for long are kept."""
    paused = list[float]()
    with ray_nodes(_NODES) as nodes:
        while len(kind.took) < kills:
            folder = Path(tempfile.mkdtemp(prefix="failures-"))
            with LocalCluster(nodes, f"dp-fail-{seed}", folder / "data", mirrored=kind.mirrored) as cluster:
                strike = partial(kind.strike, cluster)
                outcome = campaign(cluster, folder / "histories", seconds, seed, strike, rows_vanish=kind.rows_vanish)
            paused += outcome.pauses.values()
            say(f"seed {seed}: {outcome.counts}")
            say(f"  pauses: { ({name: round(pause, 2) for name, pause in outcome.pauses.items()}) }")
            say(
                f"  {len(kind.took)} kills; {kind.title}: {told(kind.took)}; pauses of clients: {told(paused)}, "
                f"{sum(pause > _LONGEST_S for pause in paused)} beyond {_LONGEST_S:g} s"
            )
            _end_if(outcome.found, folder)
            if max(outcome.pauses.values()) > _LONGEST_S:
                say(f"  files: {folder}")
            else:
                shutil.rmtree(folder)
            seed += 1


def _end_if(found: list[str], folder: Path) -> None:
    if found:
        sys.exit("\n".join([*found[:_SHOWN], f"files: {folder}"]))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--coordinator-kills", type=int, default=0)
    parser.add_argument("--node-kills", type=int, default=0)
    parser.add_argument("--mirrored-node-kills", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a round")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    chosen = parser.parse_args()
    wanted = {
        CoordinatorKills(): chosen.coordinator_kills,
        NodeKills(): chosen.node_kills,
        MirroredNodeKills(): chosen.mirrored_node_kills,
    }
    for kind, kills in wanted.items():
        if kills:
            kill(kind, kills, chosen.seconds, chosen.seed)


if __name__ == "__main__":
    main()
