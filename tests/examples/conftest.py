"""What the tests of `examples/grpo` share: the path to its modules, and a model of a few thousand weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

# The examples are scripts in a folder, not an installed package: like `python examples/grpo/run.py`, which puts the
# script's folder first, this makes their imports of one another work.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "grpo"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from settings import ModelSettings
    from tiny_model import save_tiny_model
    from warmup import tokenizer_texts

    folder = tmp_path_factory.mktemp("tiny_model")
    shape = ModelSettings(vocab_size=400, hidden_size=16, intermediate_size=32, layers=2, heads=2)
    save_tiny_model(folder, tokenizer_texts([]), shape, seed=0)
    return folder


@pytest.fixture(scope="session")
def model(model_folder: Path) -> PreTrainedModel:
    from tiny_model import load_model

    return load_model(model_folder)[0]


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> PreTrainedTokenizerBase:
    from tiny_model import load_model

    return load_model(model_folder)[1]
