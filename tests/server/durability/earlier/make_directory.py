r"""Makes the data directory of an earlier version, with that version's packages.

    git worktree add ../earlier 28a0694
    PYTHONPATH=../earlier/proto:../earlier/client:../earlier/dataplane_server \
        python tests/server/durability/earlier/make_directory.py tests/server/durability/earlier/28a0694.tar.xz

It has a snapshot `before-upgrade`, and what a run may have under way: rows with tags in all kinds of fields, groups,
one of them reserved, consumed and claimed rows, a step of two ranks of which one has committed, and a claim that
waits. `test_earlier_cores.py` knows all of it.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import torch

from dataplane_client import DataPlaneClient, DataPlaneError, connect

MEMORY = "1MiB"


def fill(client: DataPlaneClient) -> None:
    client.register_partition(
        "train",
        ["input_ids", "reward", "note", "pixels"],
        0,
        ["logprobs", "train"],
        per_token_fields=["input_ids"],
    )
    ids = [f"s{number}" for number in range(12)]
    tokens = [torch.arange(number + 1) for number in range(12)]
    pixels = torch.arange(48, dtype=torch.float32).reshape(12, 2, 2).to(torch.bfloat16)
    columns = {"input_ids": tokens, "reward": [number / 4 for number in range(12)], "pixels": pixels}
    client.put_samples(ids, "train", columns, tags=[{"weight_version": n // 4, "kind": f"k{n % 3}"} for n in range(12)])
    client.put_samples(ids[:3], "train", {"note": [{"turns": number} for number in range(3)]})
    client.claim("train", "train", ["input_ids"], 4).commit()
    client.set_weight_version("train", 3)
    for name in ("g0", "g1"):
        with client.reserve_group("train", name, [f"{name}-0", f"{name}-1"], weight_version=2) as group:
            group.put([f"{name}-0", f"{name}-1"], {"reward": [1.0, 0.0]})
    client.register_partition("steps", ["x"], 0, ["t"])
    client.put_samples([f"x{number}" for number in range(4)], "steps", {"x": [0, 1, 2, 3]})


def main() -> None:
    archive = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        address, data = f"unix://{folder}/dataplane.sock", Path(folder, "data")
        command = [sys.executable, "-m", "dataplane_server", "--listen", address, "--http", "", "--memory", MEMORY]
        flags = ["--data-dir", str(data), "--durability", "disk"]
        with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()  # it listens
            with connect(address) as client, connect(address) as waiting:
                fill(client)
                held = [
                    client.claim("train", "train", ["input_ids"], 2),
                    client.reserve_group("train", "g2", ["g2-0"], weight_version=3),
                ]
                held += [
                    client.claim_shard("steps", "t", ["x"], 4, step=0, dp_rank=rank, dp_world=2) for rank in (0, 1)
                ]
                held[2].commit()
                more = threading.Thread(target=wait_in_vain, args=(waiting,))
                more.start()
                deadline = time.monotonic() + 30
                while not client.server_status().waiting_claims:
                    assert time.monotonic() < deadline, "the claim does not wait"
                client.create_snapshot("before-upgrade")
                server.send_signal(signal.SIGKILL)
                more.join()
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(data, "data")


def wait_in_vain(client: DataPlaneClient) -> None:
    with contextlib.suppress(DataPlaneError):  # the server dies meanwhile
        client.claim("train", "train", ["note"], 100, min_size=100, timeout_s=60)


if __name__ == "__main__":
    main()
