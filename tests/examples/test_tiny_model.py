from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from make_problems import PROBLEMS_FILE
from problem_file import load_problems, prompt_ids
from settings import ModelSettings
from tiny_model import load_model, make_model, train_tokenizer
from warmup import tokenizer_texts


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


def test_a_loaded_tokenizer_is_the_one_that_was_trained(tokenizer: PreTrainedTokenizerBase) -> None:
    trained = train_tokenizer(tokenizer_texts([]), 400)
    assert tokenizer.get_vocab() == trained.get_vocab()
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for text in (composed, decomposed, "has 14 apples.\n14-3=11"):
        assert tokenizer.encode(text) == trained.encode(text)
    assert tokenizer.decode(tokenizer.encode(decomposed)) == decomposed


def test_special_tokens_are_three_and_a_prompt_opens_with_the_first(tokenizer: PreTrainedTokenizerBase) -> None:
    specials = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert len(set(specials)) == 3
    ids = prompt_ids(tokenizer, "How many?")
    assert ids[0] == tokenizer.bos_token_id
    assert not set(ids[1:]) & set(specials)


def test_the_tokenizer_is_no_larger_than_asked_and_fits_the_model(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
) -> None:
    assert len(tokenizer) <= 400
    assert model.config.vocab_size == len(tokenizer)


def test_a_loaded_model_has_the_weights_that_were_made(model_folder: Path) -> None:
    loaded, tokenizer = load_model(model_folder)
    shape = ModelSettings(vocab_size=400, hidden_size=16, intermediate_size=32, layers=2, heads=2)
    made = make_model(tokenizer, shape, seed=0)
    other = make_model(tokenizer, shape, seed=1)
    weights = dict(loaded.named_parameters())
    assert all(torch.equal(weights[name], value) for name, value in made.named_parameters())
    assert not all(torch.equal(weights[name], value) for name, value in other.named_parameters())


def test_input_and_output_embeddings_are_one_tensor(model: PreTrainedModel) -> None:
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_a_tokenizer_without_an_end_of_sequence_token_is_refused(tmp_path: Path, model_folder: Path) -> None:
    _, tokenizer = load_model(model_folder)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        load_model(tmp_path)


def test_the_longest_shipped_problem_fits_the_model(tokenizer: PreTrainedTokenizerBase) -> None:
    longest = max(len(prompt_ids(tokenizer, problem.question)) for problem in load_problems(PROBLEMS_FILE))
    assert longest + 128 <= ModelSettings().max_positions
