"""Measure what needs a GPU: reads to it beside the bus, and a whole GRPO step.

    python benchmarks/gpu.py [--device cuda] [--quick] [--json PATH]

Starts a real server process; the client shares its memory. Without a GPU it says so and exits with 3. `--device cpu`
runs the same code with a tiny model, to try it; its figures tell nothing of a GPU. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console

import gpu_reads
import gpu_step
import machine
from dataplane_client import connect
from servers import server_process
from session import Session

_NO_GPU = 3
_RUNS = Path(__file__).resolve().parents[1] / "runs" / "bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where tensors go")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, default=_RUNS / "gpu.json", help="file for the figures")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here", file=sys.stderr)
        sys.exit(_NO_GPU)
    session = Session(Console(), options.quick, _RUNS, "")
    facts = machine.describe() | {"device": _described(options.device)}
    session.console.print(", ".join(f"{name} {fact}" for name, fact in facts.items()), highlight=False, soft_wrap=True)
    _measure(session, torch.device(options.device))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": facts, "figures": session.figures}, indent=2))
    session.console.print(f"figures: {options.json}")


def _measure(session: Session, device: torch.device) -> None:
    with (
        server_process() as server,
        connect(server.unix) as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        with session.phase("reads of batch G"):
            gpu_reads.measure(session, client, device)
        with session.phase("GRPO steps"):
            gpu_step.measure(session, client, server.unix, device, Path(folder))


def _described(device: str) -> str:
    if device == "cpu":
        return "the CPU, in place of a GPU"
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


if __name__ == "__main__":
    main()
