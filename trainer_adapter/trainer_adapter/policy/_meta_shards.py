"""A meta dealt out to data-parallel ranks, which fetch their own rows from the data plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataplane_client.meta import KVBatchMeta
from trainer_adapter.microbatch_args import Stage, dynamic_batching_args, sequence_packing_args, width_multiple
from trainer_adapter.pad_target import with_pad_target
from trainer_adapter.sharding import shard_meta_for_dp


def metas_by_rank(
    meta: KVBatchMeta, config: Mapping[str, Any], dp_size: int, stage: Stage, batch_size: int | None
) -> list[KVBatchMeta]:
    """One meta a data-parallel rank, with the width that all of them pad their rows to and the plan of the rank's
    microbatches. The width is kept where the meta names one already, so that all stages of a step see the same.

    Raises what shard_meta_for_dp raises. The rows must divide: a row is written back once, so none can stand in for
    another as in a batch that is dealt out.
    """
    dynamic, packing = dynamic_batching_args(config, stage), sequence_packing_args(config, stage)
    rounding = 1 if dynamic is None else dynamic["sequence_length_round"]
    padded = with_pad_target(meta, pad_to_multiple=width_multiple(config), sequence_length_round=rounding)
    metas, _ = shard_meta_for_dp(
        padded,
        dp_world=dp_size,
        batch_size=batch_size,
        sequence_packing_args=packing,
        dynamic_batching_args=dynamic,
    )
    return metas
