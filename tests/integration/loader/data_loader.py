"""A torch DataLoader over a loader, in a process that has no gRPC of its own: `python data_loader.py ADDRESS WORKERS`.
Prints, as JSON, the rows that came, the sum of their numbers, and what a commit there says.
"""

from __future__ import annotations

import json
import sys

from torch.utils.data import DataLoader

from dataplane_client.errors import PreconditionError
from dataplane_client.loader import ClaimLoader


def main(address: str, num_workers: int) -> None:
    """Load everything."""
    loader = ClaimLoader(address, "p", "train", ["tokens", "number", "text"], 64, num_workers=3)
    sample_ids: list[str] = []
    total, refusal = 0, ""
    for batch in DataLoader(loader, batch_size=None, num_workers=num_workers, multiprocessing_context="fork"):
        sample_ids += batch.meta.sample_ids
        total += int(batch.data["number"].sum())
        try:
            batch.commit()
        except PreconditionError as error:
            refusal = str(error)
    sys.stdout.write(json.dumps([sample_ids, total, refusal]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
