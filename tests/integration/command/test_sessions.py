"""Sessions of a server that is stopped for a while: nobody pays for the time in which it did not listen."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import torch
from tests.integration.command.conftest import Start

from dataplane_client.client import connect

GRACE_S = 2.0


def test_a_session_outlives_a_server_that_stood_still_for_three_times_its_grace(
    start_command: Start, tmp_path: Path
) -> None:
    listen = f"unix://{tmp_path}/dataplane.sock"
    command = start_command("--listen", listen)
    with connect(listen, timeout_s=120.0, session_grace_s=GRACE_S) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["a"], "p", {"x": torch.zeros(1)})
        claim = client.claim("p", "train", ["x"], 1)
        command.process.send_signal(signal.SIGSTOP)
        time.sleep(3 * GRACE_S)
        command.process.send_signal(signal.SIGCONT)
        assert claim.commit() == 1
    assert '"event": "session_expired"' not in command.log
