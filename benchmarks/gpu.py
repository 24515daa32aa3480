"""Measure what needs a GPU: reads to it beside the bus, and a whole GRPO step (see `gpu_step`).

    python benchmarks/gpu.py [--device cuda] [--quick] [--json PATH]

Batch G is put over shared memory and read with `device=`: ragged values go through pinned memory and are padded on the
device. Beside it are its jagged bytes from one pinned block, which is the floor, and a read to the host whose padded
tensors are sent afterwards. Each ends when the device has everything.

Starts a real server process; the client shares its memory. Without a GPU it says so and exits with 3. `--device cpu`
runs the same code with a tiny model, to try it; its figures tell nothing of a GPU. Takes about two minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import gpu_step
import machine
from batches import G, build
from dataplane_client import DataPlaneClient, connect, kv_first_write, read_columns
from report import Session, arguments, begin
from servers import server_process
from timing import Round, alternate, timed
from workers import LOGS

_NO_GPU, _ROUNDS = 3, 31


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where tensors go")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, default=LOGS / "gpu.json", help="file for the figures")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here", file=sys.stderr)
        sys.exit(_NO_GPU)
    session, device = Session(begin(), options.quick), torch.device(options.device)
    if options.device == "cuda":
        session.console.print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    with (
        server_process() as server,
        connect(server.unix) as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        with session.phase("reads of batch G"):
            _reads(session, client, device)
        with session.phase("GRPO steps"):
            gpu_step.measure(session, client, server.unix, device, Path(folder))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": machine.describe(), "figures": session.figures}, indent=2))
    session.console.print(f"figures: {options.json}")


def _reads(session: Session, client: DataPlaneClient, device: torch.device) -> None:
    batch = build(G)
    columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
    client.register_partition("reads", list(columns), 0, ["train"], per_token_fields=batch.per_token)
    ids, names = [f"sample_{row}" for row in range(batch.rows)], list(columns)
    meta = kv_first_write(columns, sample_ids=ids, dp_client=client, partition_id="reads")
    source = torch.ones(batch.jagged_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty_like(source, device=device)

    def ending(read: Callable[[], object]) -> Round:
        def once() -> dict[str, float]:
            gpu_step.wait(device)
            return timed(read=lambda: (read(), gpu_step.wait(device)))  # type: ignore[func-returns-value]

        return once

    systems = {
        "the bus": ending(lambda: target.copy_(source, non_blocking=True)),
        "read_columns(device=...)": ending(lambda: read_columns(client, meta, names, device=device)),
        "read_columns, then to(device)": ending(lambda: read_columns(client, meta, names).to(device)),
    }
    measured = alternate(systems, session.rounds(_ROUNDS), session.warmups)
    session.compare("gpu.reads", f"batch G to {device}: {batch.sizes}", measured, size_bytes=batch.jagged_bytes)


if __name__ == "__main__":
    main()
