"""What a campaign is to be."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PARTITION = "p"
TASKS = ("rows", "groups", "shards")
"""Consumers by how they claim: any rows, whole groups, the shards of steps."""
SHARED_TASKS = frozenset({"shards"})
FIELDS = ("tokens", "prompt", *(f"{task}_{column}" for task in TASKS for column in ("result", "draft")))
DP_WORLD = 2
STOP_FILE = "stop"


@dataclass(frozen=True, slots=True)
class Settings:
    """processes: clients at a time, a quarter of them producers. seconds: how long there are faults. transport: of all
    clients; if it is empty, half of them use shared memory. rows_vanish: with nodes of a cluster.
    """

    address: str
    folder: Path
    processes: int
    seconds: float
    grace_s: float
    seed: int
    transport: str = ""
    rows_vanish: bool = False

    def json(self) -> str:
        return json.dumps(asdict(self) | {"folder": str(self.folder)})

    @classmethod
    def of_json(cls, text: str) -> Settings:
        facts = json.loads(text)
        return cls(**facts | {"folder": Path(facts["folder"])})

    @classmethod
    def chosen(cls, address: str, folder: Path, processes: int, seconds: float, seed: int = 1) -> Settings:
        """HISTORIES_PROCESSES, _SECONDS, _GRACE and _SEED of the environment replace what a test wants. Makes the
        folder.
        """
        folder.mkdir()

        def value(name: str, wanted: float) -> float:
            return float(os.environ.get(f"HISTORIES_{name}", wanted))

        processes, seed = int(value("PROCESSES", processes)), int(value("SEED", seed))
        return cls(address, folder, processes, value("SECONDS", seconds), value("GRACE", 1.0), seed)

    def options(self, slot: int, process: str) -> dict[str, Any]:
        """How the client of a process connects."""
        return {
            "transport": self.transport or ("shm" if slot // 4 % 2 == 0 else "grpc"),
            "timeout_s": 120.0,
            "connect_timeout_s": 120.0,
            "max_backoff_s": 0.1,
            "session_grace_s": self.grace_s,
            "client_name": process,
        }
