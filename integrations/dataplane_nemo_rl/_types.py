"""NeMo-RL's types if it is installed, and otherwise ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataplane_client.records import meta as ours

if TYPE_CHECKING:
    from dataplane_client.records.meta import KVBatchMeta as KVBatchMeta

    Interface = object
else:
    try:
        from nemo_rl.data_plane.interfaces import DataPlaneClient as Interface
        from nemo_rl.data_plane.interfaces import KVBatchMeta
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nemo_rl":
            raise  # NeMo-RL is there, and something that it needs is not
        KVBatchMeta = ours.KVBatchMeta
        Interface = object


def their_meta(meta: ours.KVBatchMeta) -> KVBatchMeta:
    """The meta without generations, which their type has no place for."""
    return KVBatchMeta(
        partition_id=meta.partition_id,
        task_name=meta.task_name,
        sample_ids=meta.sample_ids,
        fields=meta.fields,
        sequence_lengths=meta.sequence_lengths,
        extra_info=meta.extra_info,
        tags=meta.tags,
    )
