"""The figures of a batch: how far the engine's log-probabilities are from the trainer's, rewards, response lengths.

d = rollout logprob - trainer logprob of a sampled token; ratio = exp(-d) is the token's importance weight, whose mean
is 1 if both compute the same distribution. k3 = ratio - 1 - log(ratio) = exp(-d) - 1 + d estimates KL(rollout ||
trainer) from tokens that the rollout sampled; it is unbiased and never negative (J. Schulman, "Approximating KL
Divergence", 2020, http://joschu.net/blog/kl-approx.html). The mean of d is k1 there. As in the adapter's losses, mean
ratio and k3 clamp d to [-20, 20], so that one token cannot make them infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dataplane_training_figures._columns import flat_column, require_same_sizes
from dataplane_training_figures._distribution import Distribution, summarise, unpack

FIELDS = ("generation_logprobs", "prev_logprobs", "token_mask", "reward")
"""What `figures_of` reads by default."""


@dataclass(frozen=True, eq=False)
class BatchFigures:
    """The figures of a batch, or of several that were added, such as those of all data-parallel ranks.

    parts: response_lengths (masked tokens of each row), and unless they were left out rewards, and logprobs: d of the
    masked tokens. rules: the bounds and the longest length that figures_of was given.
    """

    parts: Mapping[str, Distribution]
    rules: tuple[float, float, int | None]

    def __add__(self, other: BatchFigures) -> BatchFigures:
        mine, theirs = ((*figures.rules, *figures.parts) for figures in (self, other))
        if mine != theirs:
            raise ValueError(f"figures to be added must have the same bounds, longest and parts: {mine} and {theirs}")
        return BatchFigures({name: part + other.parts[name] for name, part in self.parts.items()}, self.rules)

    def as_metrics(self, partition: str = "") -> dict[str, float]:
        """The figures by names such as `dataplane/logprobs/kl_k3`, or with a partition `dataplane/train/logprobs/...`.

        NaN where there is nothing to take a mean of.
        """
        named = {part: numbers.figures() for part, numbers in self.parts.items()}
        if "logprobs" in named:
            named["logprobs"] = _logprob_figures(self.parts["logprobs"])
        if self.rules[2] is not None:
            named["response_lengths"]["truncated"] = self.parts["response_lengths"].means()[2]
        head = f"dataplane/{partition}" if partition else "dataplane"
        return {f"{head}/{part}/{name}": value for part, each in named.items() for name, value in each.items()}


def figures_of(
    batch: Mapping[str, Any],
    *,
    mask: str = "token_mask",
    rollout: str | None = "generation_logprobs",
    trainer: str | None = "prev_logprobs",
    reward: str | None = "reward",
    bounds: tuple[float, float] = (0.8, 1.25),
    longest: int | None = None,
) -> BatchFigures:
    """The figures of a batch on any device, padded or jagged, such as `read_columns` returns.

    mask: the field that is 1 at the tokens of responses and 0 elsewhere.
    rollout, trainer: the fields of log-probabilities; None for either leaves them out. reward: None leaves it out.
    bounds: of the ratio; the share of tokens outside is told.
    longest: response tokens at which generation stops; the share of rows that have as many is told.

    The work is done on the device, and its results come in one transfer. ValueError and TypeError name the field.
    """
    if not 0 <= bounds[0] <= 1 <= bounds[1]:
        raise ValueError(f"bounds: must be a ratio of 0 to 1 and one of at least 1, got {bounds}")
    tokens, offsets = flat_column(batch, mask, 2)
    counted, lengths, wrong_tokens = _responses(tokens, offsets)
    wrong = {f"field {mask!r}: must be 0 or 1": wrong_tokens}
    rows = torch.ones_like(lengths, dtype=torch.bool)
    parts = {"response_lengths": summarise(lengths, rows, *(() if longest is None else [(lengths >= longest).sum()]))}
    if reward is not None:
        rewards, own = flat_column(batch, reward, 1)
        require_same_sizes({mask: (lengths, offsets), reward: (rewards, own)})
        parts["rewards"] = summarise(rewards, rows)
    if rollout is not None and trainer is not None:
        columns = {name: flat_column(batch, name, 2, floating=True) for name in (rollout, trainer)}
        require_same_sizes({mask: (tokens, offsets), **columns})
        for name, (_, own) in columns.items():
            wrong[f"field {name!r}: rows must be as long as those of {mask!r}"] = (own != offsets).sum()
        parts["logprobs"] = _summarise_logprobs(columns[rollout][0], columns[trainer][0], counted, bounds)
    together = torch.cat([*parts.values(), torch.stack([*wrong.values()]).double()]).cpu()  # the only transfer
    *summaries, entries = together.split([*map(len, parts.values()), len(wrong)])
    for rule, number in zip(wrong, entries.tolist(), strict=True):
        if number:
            raise ValueError(f"{rule}; {int(number)} entries are not")
    found = {name: unpack(summary.numpy()) for name, summary in zip(parts, summaries, strict=True)}
    return BatchFigures(found, (*bounds, longest))


def _responses(mask: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether each token counts, how many of each row do, and how many entries of the mask are neither 0 nor 1."""
    place = torch.arange(len(mask), device=mask.device)
    inside = (place >= offsets[0]) & (place < offsets[-1])
    counted = (mask == 1) & inside
    before = torch.cat([offsets.new_zeros(1), counted.cumsum(0)])
    return counted, before[offsets[1:]] - before[offsets[:-1]], ((mask != 0) & ~counted & inside).sum()


def _summarise_logprobs(rollout: Tensor, trainer: Tensor, counted: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The summary of d. Its further sums are those that `_logprob_figures` reads."""
    d = rollout.double() - trainer.double()
    known = torch.where(d.isfinite() & counted, d, 0.0)  # the others have the ratio 1, which is inside
    ratio, clamped = (-known).exp(), known.clamp(-20, 20)
    excess = torch.expm1(-clamped)  # exact where the ratio is close to 1
    outside = (ratio < bounds[0]) | (ratio > bounds[1])
    return summarise(d, counted, known.abs().sum(), excess.sum(), outside.sum(), (excess + clamped).sum())


def _logprob_figures(d: Distribution) -> dict[str, float]:
    mean, _, mean_abs, excess, outside, k3 = d.means()
    count, non_finite = d.counts.tolist()
    means = {"diff_mean": mean, "abs_diff_mean": mean_abs, "ratio_mean": 1 + excess, "kl_k3": k3}
    quantiles = {f"abs_diff_p{percent}": d.quantile(percent / 100, absolute=True) for percent in (50, 99)}
    return {"count": count, "non_finite": non_finite, **means, "ratio_outside": outside, **quantiles}
