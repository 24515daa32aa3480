"""The door of the command `dataplane-server`: its address is printed, and stays when the server restores a snapshot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.http_door.asking import ask_at

from dataplane_client.client import connect


def test_the_door_of_a_server_stays_where_it_is(tmp_path: Path, eventually: Any) -> None:
    listen = f"unix://{tmp_path}/s"
    flags = ["--listen", listen, "--http=", "--http-door=127.0.0.1:0", "--memory=16MiB", f"--data-dir={tmp_path}/data"]
    command = [sys.executable, "-m", "dataplane_server", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ask = ask_at(json.loads(process.stdout.readline())["http_door"])
        try:
            with connect(listen, timeout_s=20.0) as client:
                client.register_partition("p", ["reward"], 0, ["train"])
                for name in ("a", "b"):
                    body = {"samples": [{"sample_id": name, "fields": {"reward": 0.5}}]}
                    assert ask("POST", "/v1/partitions/p/samples", body).status == 200
                    if name == "a":
                        client.create_snapshot("one")
                client.restore_snapshot("one")
                eventually(lambda: client.partition("p").rows == 1)
                assert ask("GET", "/v1/partitions/p").body["rows"] == "1"
        finally:
            process.terminate()
    assert process.returncode == 0
