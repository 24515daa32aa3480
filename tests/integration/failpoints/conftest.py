from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.failpoints.lives import Lives


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Lives]]:
    """Lives on the directory `data`, with a durability, small segments, and checkpoints every 60 calls."""
    with ExitStack() as running:

        def begin(durability: str) -> Lives:
            flags = ("--memory", "16MiB", "--durability", durability, "--log-history", "0")
            settings = {"checkpoint_calls": 60, "segment_bytes": 16 << 10}
            return running.enter_context(Lives(tmp_path, tmp_path / "data", *flags, **settings))

        yield begin
