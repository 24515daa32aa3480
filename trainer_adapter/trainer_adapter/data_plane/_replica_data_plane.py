"""A replica's access to the data plane: fetch rows as a batch, write results back, claim a shard.

All calls are collective over the replica. Only its leader talks to the server, so N ranks cost one read and one write,
and all get the same bytes. Calls to the server have the client's deadlines. The other ranks wait for the leader until
their group's timeout (dtensor_cfg.collective_timeout_s), which must be longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from tensordict import TensorDict
from torch.distributed import ProcessGroup

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.codec import Layout, materialize
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter._exchange import meta_values
from trainer_adapter.data_plane._claim import ReplicaClaim
from trainer_adapter.data_plane._columns import result_column
from trainer_adapter.data_plane._microbatch_plan import attach_plan
from trainer_adapter.data_plane._replica import ReplicaGroup, run_on_each_rank, run_on_leader
from trainer_adapter.data_plane._width import agree_on_longest, longest_row, report_unreadable
from trainer_adapter.pad_target import pad_target, rounded_up

FetchPolicy: TypeAlias = Literal["auto", "leader_broadcast", "independent"]
"""Which ranks read: "auto": the leader, for all ranks; "leader_broadcast": the same, but the replica must have other
ranks; "independent": every rank for itself.
"""

Preprocess: TypeAlias = Callable[[BatchedDataDict[Any]], BatchedDataDict[Any]]

_ID_FIELDS = ("input_ids", "prompt_ids_for_adv")
"""Fields that are padded with the pad token; all others are padded with 0."""


class ReplicaDataPlane:
    """One rank's access to the data plane."""

    def __init__(
        self,
        client: DataPlaneClient | None,
        *,
        replica: ReplicaGroup,
        dp_group: ProcessGroup | None,
        device: torch.device,
        pad_token_id: int | None,
        pad_multiple: int,
    ) -> None:
        """client: required on leaders only, unless ranks read independently; not closed here.
        dp_group: the ranks with this rank's place in other replicas; None: there are none.
        device: of the batches, and of the groups' communication.
        pad_token_id: None pads ids with 0.
        pad_multiple: in tokens; divides the widths that ranks agree on.
        """
        if pad_multiple < 1:
            raise ValueError(f"pad_multiple must be at least 1, got {pad_multiple}")
        self._client = client
        self._replica = replica
        self._dp_group = dp_group
        self._device = device
        self._pad_values = {} if pad_token_id is None else dict.fromkeys(_ID_FIELDS, pad_token_id)
        self._pad_multiple = pad_multiple

    def require_client(self) -> DataPlaneClient:
        """Return the client. RuntimeError if there is none."""
        if self._client is None:
            raise RuntimeError("this worker has no data-plane client: pass data_plane to the worker")
        return self._client

    # --- reading ---

    def fetch(
        self,
        meta: KVBatchMeta,
        fields: Sequence[str] | None = None,
        *,
        layout: Layout = "padded",
        fetch_policy: FetchPolicy = "auto",
        preprocess: Preprocess | None = None,
        dp_aligned_seq_len: bool = True,
    ) -> BatchedDataDict[Any]:
        """Read the rows of a meta, in its order, on every rank of the replica, with the plan of microbatches it
        carries.

        fields: None: the meta's own.
        layout: "padded": (N,S,...), ids padded with the pad token, all else with 0; "jagged": nested tensors; "auto":
            nested tensors, but dense ones for fields whose rows have one length.
        preprocess: applied once, by the rank that reads, to the batch on this device; it must keep the rows.

        S is the width that the driver chose (`with_pad_target`). Without one it is the longest row, rounded up to
        pad_multiple: with dp_aligned_seq_len the longest of all data-parallel ranks, which must all call and agree on
        it in one all-reduce; otherwise the longest of this replica.

        On CUDA, ragged values are copied from pinned memory without padding, which is added on the device, and the
        broadcast uses the device tensors. All of it is queued on the current stream and may be unfinished when this
        returns; later work on that stream waits for it. The hosts of the other ranks wait for the leader's header,
        which has the shapes. To overlap with compute on another stream, call this under its own stream
        (`torch.cuda.stream`) and let the other stream wait for it.

        A read that fails raises on all ranks of the replica: errors of the data plane as they are; other errors as they
        are on the failing rank and as RuntimeError elsewhere. ValueError for an unknown policy or layout, for no rows
        or fields, and for a width or a plan that does not fit the rows; RuntimeError for "leader_broadcast" on a single
        rank, and where ranks agree on the width of rows whose lengths the meta lacks, and another one could not read
        its rows, or has none.
        """
        names = (meta.fields if fields is None else fields) or []
        self._check(meta, names, layout, fetch_policy)

        def read() -> BatchedDataDict[Any]:
            batch = self._read(meta, names, layout, self._dp_group if dp_aligned_seq_len else None)
            return batch if preprocess is None else _preprocess(preprocess, batch, meta)

        if fetch_policy == "independent":
            batch = run_on_each_rank(read, self._replica, self._device)
        else:
            batch = BatchedDataDict(run_on_leader(read, self._replica, self._device))
        attach_plan(batch, meta)
        return batch

    def _check(self, meta: KVBatchMeta, names: Sequence[str], layout: str, policy: str) -> None:
        if policy not in get_args(FetchPolicy):
            raise ValueError(f"fetch_policy must be one of {get_args(FetchPolicy)}, got {policy!r}")
        if layout not in get_args(Layout):
            raise ValueError(f"layout must be one of {get_args(Layout)}, got {layout!r}")
        if policy == "leader_broadcast" and self._replica.group is None:
            raise RuntimeError(
                "fetch_policy 'leader_broadcast' needs a replica of several ranks; use 'auto' on a single rank"
            )
        if not names:
            raise ValueError(f"fetch from {meta.partition_id!r}: no fields; set fields or meta.fields")
        _check_width(meta, max(meta.sequence_lengths or [0]))

    def _read(
        self, meta: KVBatchMeta, names: Sequence[str], layout: Layout, dp_group: ProcessGroup | None
    ) -> BatchedDataDict[Any]:
        if layout != "padded":
            return self.require_client().read_columns(meta, names, layout=layout, device=self._device)
        if meta.sequence_lengths is None or not meta.size:
            return self._read_and_measure(meta, names, dp_group)
        width = pad_target(meta)
        if width is None:
            width = self._width(max(meta.sequence_lengths, default=0), dp_group)
        pad_values = {name: value for name, value in self._pad_values.items() if name in names}
        return self.require_client().read_columns(
            meta, names, pad_value_dict=pad_values, pad_to_seqlen=width, device=self._device
        )

    def _read_and_measure(
        self, meta: KVBatchMeta, names: Sequence[str], dp_group: ProcessGroup | None
    ) -> BatchedDataDict[Any]:
        """Read rows whose lengths are unknown before. Without rows this rank could not take part in what comes next, so
        it tells the others, as a rank that cannot read its rows does.
        """
        width = pad_target(meta)
        try:
            if not meta.size:
                raise ValueError(f"fetch from {meta.partition_id!r}: this data-parallel rank has no rows")
            ragged = self.require_client().read_columns(meta, names, layout="jagged", device=self._device)
            longest = longest_row(ragged)
            _check_width(meta, longest)
        except BaseException:
            if width is None:
                report_unreadable(dp_group, self._device)
            raise
        if width is None:
            width = self._width(longest, dp_group)
        return materialize(TensorDict(ragged.get_dict(), batch_size=[meta.size]), "padded", self._pad_values, width)

    def _width(self, longest: int, dp_group: ProcessGroup | None) -> int:
        return rounded_up(max(agree_on_longest(longest, dp_group, self._device), 1), self._pad_multiple)

    # --- writing ---

    def write_back(self, meta: KVBatchMeta, result: object, *, result_key: str, field: str) -> None:
        """Store result[result_key] as a field of the meta's rows: (N,) or (N,S,...), row for row in the meta's order.

        The leader writes once; the results of other ranks are ignored. Without a client it does nothing. Padding is not
        stored: the rows' lengths are the meta's sequence_lengths or, without them, result["input_lengths"].

        Raises on all ranks of the replica, as fetch does: RuntimeError for a result that is not a mapping or lacks the
        key; TypeError for a value that is not a tensor; ValueError for a wrong number of rows or too few columns;
        ReplacedError or NotFoundError for a row that was cleared since (and put again or not).
        """

        def write() -> dict[str, Any]:
            if self._client is not None:
                column = result_column(meta, result, result_key)
                self._client.put_samples(
                    meta.sample_ids, meta.partition_id, {field: column}, generations=meta.generations
                )
            return {}

        run_on_leader(write, self._replica, self._device)

    # --- claiming ---

    def claim_shard(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        step: int,
        dp_rank: int,
        dp_world: int,
        **options: Any,
    ) -> ReplicaClaim:
        """Claim this data-parallel rank's rows of a step, for all ranks of the replica.

        Arguments, options and errors are those of DataPlaneClient.claim_shard; errors are raised on all ranks. The
        claim is open for as long as the leader's client is.
        """
        held: list[Claim] = []

        def take() -> dict[str, Any]:
            shard: dict[str, Any] = {"step": step, "dp_rank": dp_rank, "dp_world": dp_world, **options}
            claim = self.require_client().claim_shard(partition_id, task_name, required_fields, batch_size, **shard)
            held.append(claim)
            return {"claim_id": claim.claim_id, "committed": claim.committed, "meta": meta_values(claim.meta)}

        taken = run_on_leader(take, self._replica, self._device)
        taken["meta"] = KVBatchMeta(**taken["meta"])
        return ReplicaClaim(held[0] if held else None, **taken, replica=self._replica, device=self._device)


def _check_width(meta: KVBatchMeta, longest: int) -> None:
    width = pad_target(meta)
    if width is not None and width < longest:
        raise ValueError(f"fetch from {meta.partition_id!r}: a row has {longest} tokens, more than the width {width}")


def _preprocess(preprocess: Preprocess, batch: BatchedDataDict[Any], meta: KVBatchMeta) -> BatchedDataDict[Any]:
    done = preprocess(batch)
    if done.size != meta.size:
        raise ValueError(f"preprocess must keep the meta's {meta.size} rows, but returned {done.size}")
    return done
