"""What a command says where the packages of the extra `server` are not installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def needs_server_packages(command: str) -> Iterator[None]:
    """A block of imports. If a package of others is missing, the command says what to install and exits with 2."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("dataplane_server"):
            raise  # a defect of ours
        print(f"{command} needs the server's packages ({missing}): pip install 'rl-dataplane[server]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)
