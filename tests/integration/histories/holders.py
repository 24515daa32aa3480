"""Clients that hold a row: `python -m tests.integration.histories.holders`.

For each line of JSON (arguments of `connect`) a client is forked that claims a row of partition p for task train and
says its process id. On SIGUSR1 it commits and says how that ended: "committed", or the error's name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from dataplane_client.client import connect
from dataplane_client.errors import DataPlaneError


def hold(arguments: dict[str, Any]) -> None:
    """Claim, wait for the signal, commit."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    with connect(**arguments) as client:
        claim = client.claim("p", "train", ["x"], 1, timeout_s=30.0)
        say(str(os.getpid()))
        signal.sigwait({signal.SIGUSR1})
        try:
            claim.commit()
        except DataPlaneError as error:
            say(type(error).__name__)
        else:
            say("committed")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        if os.fork() == 0:
            status = 1
            try:
                hold(json.loads(line))
                status = 0
            finally:
                os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    main()
