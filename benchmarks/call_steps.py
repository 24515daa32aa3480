"""How many of our Python functions a small call runs, and in how many modules: client, service and core together.

Server and client run in one process, and a profile function counts. Such numbers are the same on a busy machine, so
they show what a change costs where times do not. A step is a call of a function of ours, or of one that dataclasses
generate for us; comprehensions and generator expressions count as part of their function. A few steps more or less are
those of the event loop, which ticks meanwhile.

    python benchmarks/call_steps.py [shm|grpc|direct] [--list put]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import get_args

import torch

from dataplane_client import Claim, DataPlaneClient, connect
from dataplane_client.options import TransportChoice
from dataplane_server.testing import running_server

_ROOT = Path(__file__).resolve().parents[1]
_PARTS = ("client", "dataplane_server/dataplane_server/service", "dataplane_server/dataplane_server/core", "")
_INLINE = frozenset({"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"})
_WARM_UP = 8


class Steps:
    """Counts calls of functions, by module and name, in every thread that starts after it."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._counts = False
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def of(self, call: Callable[[], object]) -> Counter[tuple[str, str]]:
        """The steps of one call."""
        self.counts.clear()
        self._counts = True
        call()
        self._counts = False
        return Counter({(file, name): n for (file, name), n in self.counts.items() if _is_ours(file)})

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and self._counts and frame.f_code.co_name not in _INLINE:
            module = frame.f_globals.get("__file__") or frame.f_code.co_filename
            self.counts[module, getattr(frame.f_code, "co_qualname", frame.f_code.co_name)] += 1


def _is_ours(file: str) -> bool:
    return file.startswith(str(_ROOT)) and ".venv" not in file and "benchmarks" not in file


def _calls(client: DataPlaneClient) -> list[tuple[str, Callable[[], object]]]:
    """The small calls, in an order in which each finds what it needs. Those without a name are not counted."""
    names = itertools.count()
    row = {"input_ids": [torch.arange(100)], "reward": torch.zeros(1)}
    claims: list[Claim] = []
    meta = client.put_samples(["read"], "p", row, sequence_lengths=[100])
    client.claim("p", "train", ["input_ids"], 1).commit()

    def put() -> None:
        client.put_samples([f"s{next(names)}"], "p", row, sequence_lengths=[100])

    def claim() -> None:
        claims.append(client.claim("p", "train", ["input_ids"], 1))

    return [
        ("put", put),
        ("claim", claim),
        ("commit", lambda: claims.pop().commit()),
        ("", put),
        ("", claim),
        ("commit with a padded column", lambda: claims.pop().commit({"logprobs": torch.zeros(1, 100)})),
        ("read", lambda: client.read_columns(meta, ["input_ids", "reward"])),
    ]


def _server(transport: str, folder: str) -> AbstractContextManager[str]:
    if transport == "direct":
        return running_server(direct="127.0.0.1:0")
    return running_server(listen=f"unix://{folder}/steps.sock")


def main() -> None:
    """Print the steps of each call, by part: client, service, core, and others."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("transport", nargs="?", default="shm", choices=get_args(TransportChoice))
    options.add_argument("--list", metavar="CALL", help="list the steps of this call")
    given, steps = options.parse_args(), Steps()
    with (
        tempfile.TemporaryDirectory() as folder,
        _server(given.transport, folder) as address,
        connect(address, transport=given.transport) as client,
    ):
        per_token = ["input_ids", "logprobs"]
        client.register_partition("p", ["reward", *per_token], 0, ["train"], per_token_fields=per_token)
        calls = _calls(client)
        for _, call in calls * _WARM_UP:
            call()
        for name, call in calls:
            found = steps.of(call)
            parts = [sum(n for (file, _), n in found.items() if part == _part_of(file)) for part in _PARTS]
            modules = len({file for file, _ in found})
            if name:
                print(f"{name}: {sum(parts)} steps in {modules} modules; by part {parts}")
            for (file, function), count in sorted(found.items()) if name and given.list == name else ():
                print(f"  {count:3} {Path(file).relative_to(_ROOT)} {function}")


def _part_of(file: str) -> str:
    return next(part for part in _PARTS if part in file)


if __name__ == "__main__":
    main()
