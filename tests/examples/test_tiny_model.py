from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from make_problems import PROBLEMS_FILE
from problem_file import load_problems, prompt_ids
from settings import ModelSettings
from tiny_model import load_model


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_encodes_and_decodes_back_unchanged(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@settings(max_examples=30, deadline=None)
@given(number=st.integers(min_value=0, max_value=10**9))
def test_every_digit_is_one_token(tokenizer: PreTrainedTokenizerBase, number: int) -> None:
    ids = tokenizer.encode(f"has {number} apples", add_special_tokens=False)
    tokens = [tokenizer.decode([token]) for token in ids]
    assert [token for token in tokens if any(map(str.isdigit, token))] == list(str(number))


def test_a_tokenizer_without_an_end_of_sequence_token_is_refused(tmp_path: Path, model_folder: Path) -> None:
    _, tokenizer = load_model(model_folder)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="end-of-sequence"):
        load_model(tmp_path)


def test_the_longest_shipped_problem_fits_the_model(tokenizer: PreTrainedTokenizerBase) -> None:
    longest = max(len(prompt_ids(tokenizer, problem.question)) for problem in load_problems(PROBLEMS_FILE))
    assert longest + 128 <= ModelSettings().max_positions
