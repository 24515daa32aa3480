"""Run `doctor` as another user, with the rights of the server's files changed for each situation. Needs root.

`python visitor.py SOCKET SITUATION...`, each situation as JSON. Prints the report of each as a line of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataplane_client.cli._doctor import examine

NOBODY = 65534


@contextlib.contextmanager
def as_nobody(group: int) -> Iterator[None]:
    """Have the rights of the user nobody in this group."""
    os.setgroups([])
    os.setegid(group)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def run_doctor(address: str) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = examine(address, "json", 5.0)
    return {"code": code, **json.loads(printed.getvalue())}


def visit(path: Path, situation: dict[str, int]) -> dict[str, Any]:
    for file, right in ((path.parent, "folder"), (path, "socket"), (Path(f"{path}.local"), "local")):
        file.chmod(situation[right])
        os.chown(file, 0, situation["owner_group"])
    with as_nobody(situation["group"]):
        return run_doctor(f"unix://{path}")


if __name__ == "__main__":
    server = Path(sys.argv[1])
    run_doctor(f"unix://{server}")  # loads modules that the other user may not be able to read
    for argument in sys.argv[2:]:
        print(json.dumps(visit(server, json.loads(argument))))  # noqa: T201  # the answer
