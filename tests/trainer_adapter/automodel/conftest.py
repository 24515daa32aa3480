"""The only rank, and the tiny models on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ranks import be_the_only_rank
from tests.trainer_adapter.automodel import setup_cases


@pytest.fixture
def only_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only rank of a group that the test makes."""
    be_the_only_rank(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the models of setup_cases."""
    folder = tmp_path_factory.mktemp("models")
    setup_cases.save_models(folder)
    return folder
