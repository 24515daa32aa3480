"""A loss over sequences that share one packed row of logits.

A packed row saves padding in the forward pass, but a loss must not cross the boundary of two sequences. So it is called
for each sequence. Every call returns a share of the global batch, so the sum equals the loss of the same sequences in
separate rows.

A loss over rows that belong together, such as the pairs of DPO, cannot be called this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.losses._call import PrepareFunction, call_loss, prepare_loss_input
from trainer_adapter.losses._interface import LossFunction, LossResult
from trainer_adapter.losses.metrics import merge_metrics


class SequencePackingLossWrapper:
    """A loss of the older shape, whose logits are packed and whose data is not.

    loss_fn: a loss of either shape.
    cu_seqlens_q: [N+1] integers, the boundaries 0, l0, l0 + l1, ... of the N sequences by their true lengths.
    cu_seqlens_q_padded: their boundaries in the packed row if each was padded; None: there are no gaps.
    prepare_fn: as for `call_loss`.
    """

    def __init__(
        self,
        loss_fn: LossFunction,
        cu_seqlens_q: Tensor,
        cu_seqlens_q_padded: Tensor | None = None,
        *,
        prepare_fn: PrepareFunction = prepare_loss_input,
    ) -> None:
        self._loss_fn = loss_fn
        self._prepare_fn = prepare_fn
        self._lengths: list[int] = cu_seqlens_q.diff().tolist()
        self._bounds: list[int] = (cu_seqlens_q if cu_seqlens_q_padded is None else cu_seqlens_q_padded).tolist()
        if len(self._bounds) != len(self._lengths) + 1 or not self._lengths:
            raise ValueError(
                f"cu_seqlens_q has {len(self._lengths)} sequences, cu_seqlens_q_padded {len(self._bounds) - 1}; "
                "both must have the same number, at least one"
            )

    def __call__(
        self,
        next_token_logits: Tensor,
        data: Mapping[str, Any],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> LossResult:
        """next_token_logits: [1,L,V] packed; data: N rows, right-padded as before packing.

        For each sequence the loss gets its row, with tensors of two or more dimensions cut to its true length, and the
        logits between its boundaries (including padding within them). Losses and metrics are summed; metrics in `_min`
        and `_max` as in `merge_metrics`. ValueError if N is not the number of rows.
        """
        batch: BatchedDataDict[Any] = BatchedDataDict(data)
        if batch.size != len(self._lengths):
            raise ValueError(f"cu_seqlens_q has {len(self._lengths)} sequences, but the data has {batch.size} rows")
        results = [
            call_loss(
                self._loss_fn,
                next_token_logits[:, self._bounds[row] : self._bounds[row + 1]],
                _cut(batch.slice(row, row + 1), length),
                global_valid_seqs,
                global_valid_toks,
                prepare_fn=self._prepare_fn,
            )
            for row, length in enumerate(self._lengths)
        ]
        losses, metrics = zip(*results, strict=True)
        return torch.stack(losses).sum(), merge_metrics(metrics)


def _cut(row: BatchedDataDict[Any], length: int) -> BatchedDataDict[Any]:
    """Cut a row to its length. Columns with one entry for each row ([1,1], such as a reward) are not sequences and are
    kept.
    """
    for key, value in row.items():
        if isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] > 1:
            row[key] = value[:, :length]
    return row
