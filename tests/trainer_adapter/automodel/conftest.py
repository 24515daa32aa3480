"""One thread for tiny models, which are slower with more threads while other tests use the cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.ranks import be_the_only_rank


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def only_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only rank of a group that the test makes."""
    be_the_only_rank(monkeypatch)
