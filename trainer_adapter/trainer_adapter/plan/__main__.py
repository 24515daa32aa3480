"""`python -m trainer_adapter.plan CONFIG --ranks N`: what a training step needs on each rank, before it starts.

CONFIG is a YAML or JSON file with a policy's configuration (trainer_adapter.automodel.config.PolicyConfig), or with one
under the key `policy`. Of the model only config.json is read. Exits with 2 if the job cannot run so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from yaml import YAMLError, safe_load

from trainer_adapter.automodel.choices import device_type
from trainer_adapter.automodel.config import is_enabled
from trainer_adapter.plan import HostMemory, StepMemory, host_memory, read_layout, step_memory
from trainer_adapter.plan._law import Work

_GIB = 1 << 30
_REFUSALS = (ValueError, KeyError, TypeError, AssertionError, NotImplementedError, ImportError, OSError, YAMLError)
_ROWS = {
    "weights": "weights, float32",
    "optimizer": "optimizer state",
    "gathered": "weights gathered by FSDP",
    "gradients": "gradients, float32",
    "activations": "activations",
    "logits": "logits and their gradient",
    "work_space": "work space",
}
_HOST = {
    "reference": "reference model",
    "training": "weights, gradients, optimizer (cpu_offload)",
    "offloaded": "weights and optimizer between steps (colocated)",
}


def main(arguments: Sequence[str] | None = None) -> None:
    flags = _parse(arguments)
    try:
        config = _read(flags.config)
        decoder, weights, work = read_layout(config, flags.ranks, flags.row_tokens)
    except _REFUSALS as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        sys.stderr.write(f"{flags.config}: {text}\n")
        sys.exit(2)
    steps = {on: step_memory(decoder, weights, replace(work, checkpointing=on)) for on in (False, True)}
    host = host_memory(
        weights,
        reference=not flags.no_reference,
        training=work.cpu_offload,
        offloads=is_enabled((config.get("generation") or {}), "colocated"),
        on_gpu=device_type(config) == "cuda",
        pins=bool(config["dtensor_cfg"].get("pin_host_memory", True)),
    )
    show = _json if flags.json else _table
    sys.stdout.write(show(steps, host, work, flags.ranks) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m trainer_adapter.plan", description=__doc__)
    parser.add_argument("config", type=Path, help="YAML or JSON file with the policy's configuration")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of the job (1)")
    parser.add_argument("--row-tokens", type=int, help="tokens of the longest row; fixed microbatches need it")
    parser.add_argument("--no-reference", action="store_true", help="the job has no reference model")
    parser.add_argument("--json", action="store_true", help="bytes as JSON instead of a table in GiB")
    return parser.parse_args(arguments)


def _read(path: Path) -> Any:
    config = safe_load(path.read_text())
    if isinstance(config, dict) and "model_name" not in config and isinstance(config.get("policy"), dict):
        config = config["policy"]
    if not isinstance(config, dict):
        raise ValueError("the file must hold a mapping of settings")
    return config


def _json(steps: dict[bool, StepMemory], host: HostMemory, work: Work, ranks: int) -> str:
    names = {False: "without_checkpointing", True: "with_checkpointing"}
    device = {names[on]: {**asdict(step), "total": step.total} for on, step in steps.items()}
    layout = {"ranks": ranks, "tokens": work.tokens, "activation_checkpointing": work.checkpointing}
    return json.dumps({"layout": layout, "device": device, "host": asdict(host)}, indent=2)


def _table(steps: dict[bool, StepMemory], host: HostMemory, work: Work, ranks: int) -> str:
    dp = ranks // (work.tp * work.cp)
    lines = [
        f"dp {dp}, tp {work.tp}, cp {work.cp}; microbatches of {work.tokens} tokens; activation checkpointing is "
        f"{'on' if work.checkpointing else 'off'}",
        f"{'GiB on the device of each rank, at the peak':<50}{'without':>12}{'with checkpointing':>22}",
    ]
    for name, text in _ROWS.items():
        lines.append(_line(text, *(getattr(steps[on], name) for on in (False, True))))
    lines.append(_line("all", *(steps[on].total for on in (False, True))))
    lines.append(f"the peak is in the {steps[False].moment}, with checkpointing in the {steps[True].moment}")
    lines.append("")
    lines.append("GiB on the host for each rank")
    lines += [_line(_HOST[field.name], getattr(host, field.name)) for field in fields(host)]
    return "\n".join(lines)


def _line(text: str, *sizes: int) -> str:
    return f"{text:<50}" + "".join(f"{size / _GIB:>{width}.2f}" for size, width in zip(sizes, (12, 22), strict=False))


if __name__ == "__main__":
    main()
