"""Tests with the marker `image` need the server's root, which `make image-root` builds, and rights to mount it."""

from __future__ import annotations

import os

import pytest
from tests.deploy.image.container import ROOT


@pytest.fixture(scope="session")
def built_root() -> None:
    """Fails rather than skips: whoever asks for these tests wants them run."""
    assert ROOT.is_dir(), "there is no root to be tested: run make test-image, which builds it"
    assert os.geteuid() == 0, "only root can mount the server's root: run make test-image as root"
