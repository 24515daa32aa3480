"""The targets of fuzzing: everything that reads bytes which others wrote, by name.

A target takes the bytes of an input and raises only if they show a defect. `inputs` says how they become several
messages or damaged files, `bounds` what an input may cost. What was found for a target is in the folder of its name.
"""

from __future__ import annotations

from pathlib import Path

from tests.hostile.fuzz import disk_targets, value_targets, wire_targets
from tests.hostile.fuzz.bounds import Target, bounded
from tests.hostile.fuzz.seeds import seeds

CORPUS = Path(__file__).parent / "corpus"
TARGETS: dict[str, Target] = {
    target.__name__: bounded(target)
    for target in (
        wire_targets.frame,
        wire_targets.stream,
        wire_targets.requests,
        wire_targets.local,
        wire_targets.http,
        value_targets.filter_expression,
        value_targets.filter_terms,
        value_targets.objects,
        value_targets.columns,
        disk_targets.data_directory,
        disk_targets.log_records,
        disk_targets.checkpoint,
        disk_targets.snapshot,
    )
}


def corpus(name: str) -> dict[str, bytes]:
    """The inputs of a target by name: seeds, and the files of what was found."""
    found = {path.name: path.read_bytes() for path in sorted((CORPUS / name).glob("*"))}
    return {**{f"seed {number}": data for number, data in enumerate(seeds(name))}, **found}
