"""Processes of their own, forked from one that has imported what takes seconds: torch above all."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

import pytest

_PRELOADED = [
    "dataplane_client.client",
    "dataplane_server.testing",
    "hypothesis",
    "pytest",
    "torch._inductor.config",
    "torch.distributed.checkpoint.hf_storage",
    "torch.testing",
    "trainer_adapter.worker",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "tests.frozen",
]

FORKS = pytest.mark.xdist_group("ranks")
"""Marks each test that forks: one worker runs them all, and the imports are paid for once."""


def forking() -> ForkServerContext:
    """Its first process in a test run takes as long as the imports, the others next to nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
