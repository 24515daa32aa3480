"""Examines a server as another user, with rights of its files as each situation has them; run as root.

The first argument is the path of the server's socket, each other one a situation as JSON. Prints a line of JSON for
each.
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

from dataplane_client.cli.doctor import examine

NOBODY = 65534


@contextlib.contextmanager
def as_nobody(group: int) -> Iterator[None]:
    """Have the rights of a user without any, but in this group."""
    os.setgroups([])
    os.setegid(group)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def examined(address: str) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = examine(address, "json", 5.0)
    return {"code": code, **json.loads(printed.getvalue())}


def visit(path: Path, situation: dict[str, int]) -> dict[str, Any]:
    for file, right in ((path.parent, "folder"), (path, "socket"), (Path(f"{path}.local"), "local")):
        file.chmod(situation[right])
        os.chown(file, 0, situation["owner_group"])
    with as_nobody(situation["group"]):
        return examined(f"unix://{path}")


if __name__ == "__main__":
    server = Path(sys.argv[1])
    examined(f"unix://{server}")  # loads what the other user may have no right to read
    for argument in sys.argv[2:]:
        print(json.dumps(visit(server, json.loads(argument))))  # noqa: T201  # the answer
