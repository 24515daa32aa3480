"""The ids of a tokenizer's special tokens. transformers' own attributes may hold text or lists as far as types tell."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase


def bos_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """None if the tokenizer has no token for the begin of a sequence."""
    return None if tokenizer.bos_token_id is None else _number("bos", tokenizer.bos_token_id)


def eos_id(tokenizer: PreTrainedTokenizerBase) -> int:
    return _number("eos", tokenizer.eos_token_id)


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    return _number("pad", tokenizer.pad_token_id)


def _number(name: str, token_id: object) -> int:
    if not isinstance(token_id, int):
        raise ValueError(f"the tokenizer's {name} token must be a number, got {token_id!r}")
    return token_id
