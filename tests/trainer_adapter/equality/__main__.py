"""A table of how far each layout of ranks is from a plain model's step.

python -m tests.trainer_adapter.equality [transformers | automodel]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from tests.rank_pool import RankPool
from tests.trainer_adapter.equality.layouts import differences


def main() -> None:
    lines = ["| layout | log-probabilities | loss | gradients |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(RankPool()) as pool:
        for name, found in differences(pool, Path(folder), *sys.argv[1:]):
            gradients = f"{found.gradients:.1e} of {found.largest_gradient:.2f}"
            lines.append(f"| {name} | {found.logprobs:.1e} | {found.loss:.1e} | {gradients} |")
    sys.stdout.write("\n".join(lines) + "\n")  # after the notices of the ranks


if __name__ == "__main__":
    main()
