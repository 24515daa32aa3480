"""What `generate` of transformers returns: a `GenerateDecoderOnlyOutput`, or the tensor of sequences alone.

Prompts are padded on the left to one width P; sequences are [N, P + steps], and N is a multiple of the number of
prompts (`num_return_sequences`), the samples of a prompt adjacent. What follows the first end-of-sequence token of a
row is padding, and so is what follows another stop. Step i has scores of [N, vocabulary] for token P + i: its logprob
is log_softmax at that token, which is what `compute_transition_scores(..., normalize_logits=True)` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dataplane_client.errors import InvalidArgumentError
from dataplane_common.number_array import number_array
from dataplane_rollout._rows import Array, RolloutRows, Segment, collect, make_rollout, names_of

if TYPE_CHECKING:
    from torch import Tensor


def from_generate(
    output: Any,
    attention_mask: Tensor,
    *,
    eos_token_id: int | Sequence[int],
    pad_token_id: int | None = None,
    group_ids: Sequence[str],
    logprobs: bool = True,
    of: Literal["scores", "logits"] = "scores",
) -> RolloutRows:
    """The rows of a call of `generate`, with the tag finish_reason: "stop" where a row ends before the last step or
    with an eos token, otherwise "length".

    attention_mask: [prompts, P], as it was given to `generate`. eos_token_id: the tokens that end a row. pad_token_id:
    fills rows that end otherwise, such as by stop_strings: without it these paddings count as sampled, and if it is an
    eos token, the first one does. group_ids: one for each prompt. logprobs: whether rows must have them; a tensor of
    sequences has none. of: "scores" are the distribution that was sampled, after temperature, top_k and the like;
    "logits" the model's own. Raises InvalidArgumentError that names the prompt, the sample and the rule.
    """
    sequences = getattr(output, "sequences", output)
    mask = attention_mask.detach().cpu().numpy().astype(bool)
    prompts, width = mask.shape
    names = names_of("prompts", group_ids, [""] * prompts)
    if not prompts or len(sequences) % prompts or sequences.shape[1] < width:
        shapes = f"sequences of shape {tuple(sequences.shape)} and an attention mask of shape {mask.shape}"
        raise InvalidArgumentError(f"generate: {shapes} do not fit: the mask must be that of the prompts")
    ends = number_array("generate: eos_token_id", np.atleast_1d(eos_token_id), "iu", np.int64)
    pads = [] if pad_token_id is None else [pad_token_id]
    tokens = sequences.detach().cpu().numpy()
    chosen = _chosen(output, sequences[:, width:], of) if logprobs else None
    rollouts = []
    for row, sequence in enumerate(tokens):
        number, sample = divmod(row, len(tokens) // prompts)
        where = f"generate, prompt {number} ({names[number]!r}), sample {sample}"
        if (np.diff(mask[number].astype(int)) < 0).any():
            raise InvalidArgumentError(f"{where}: the prompt is not padded on the left; generate needs that")
        sampled, ended = _until_end(sequence[width:], ends, pads)
        values = None if chosen is None else chosen[row, : len(sampled)]
        segments = [Segment(sequence[:width][mask[number]]), Segment(sampled, True, values)]
        tags = {"finish_reason": "stop" if ended else "length"}
        rollouts.append(make_rollout(where, names[number], segments, logprobs=logprobs, tags=tags))
    return collect(rollouts)


def _until_end(sampled: Array, ends: Array, pads: list[int]) -> tuple[Array, bool]:
    """The tokens up to the first end, or before the first padding, and whether there is one."""
    found = np.flatnonzero(np.isin(sampled, [*ends, *pads]))
    return (sampled[: found[0] + np.isin(sampled[found[0]], ends)], True) if found.size else (sampled, False)


def _chosen(output: Any, sampled: Tensor, of: str) -> Array:
    """[N, steps]: the logprob of each sampled token."""
    import torch

    steps = getattr(output, of, None)
    if steps is None:
        raise InvalidArgumentError(
            f"generate: the output has no {of}; call generate(return_dict_in_generate=True, output_{of}=True), or pass "
            "logprobs=False to put rows without logprobs"
        )
    if getattr(output, "beam_indices", None) is not None:
        raise InvalidArgumentError("generate: the output is of a beam search, whose rows were not sampled")
    if len(steps) != sampled.shape[1]:
        raise InvalidArgumentError(f"generate: {of} of {len(steps)} steps for {sampled.shape[1]} sampled tokens")
    columns = [
        torch.log_softmax(step.detach().float(), -1).gather(1, sampled[:, [number]].to(step.device)).cpu()
        for number, step in enumerate(steps)
    ]
    chosen: Array = torch.cat(columns, 1).numpy() if columns else np.zeros(tuple(sampled.shape), np.float32)
    return chosen
