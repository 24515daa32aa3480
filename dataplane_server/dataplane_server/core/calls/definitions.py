"""Merges a repeated registration into a partition's definition, or names what contradicts it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Definition

_LONGEST_LIST = 700
"""In characters; the message goes on after it."""


def merged(held: Definition, wanted: Definition) -> Definition:
    """What both declare, in the order of `held`. Refusal PARTITION_DIFFERS names all contradictions."""
    differences = "; ".join(_differences(held, wanted))
    if differences:
        message = (
            f"partition {held.partition_id!r} is defined differently: {differences[:_LONGEST_LIST]}; pass replace=True "
            "to register_partition to replace the definition, which resets all tasks"
        )
        raise Refusal(Reason.PARTITION_DIFFERS, message, partition_id=held.partition_id)
    return replace(
        held,
        fields=_union(held.fields, wanted.fields),
        tasks=_union(held.tasks, wanted.tasks),
        num_samples=max(held.num_samples, wanted.num_samples),
        per_token_fields=held.per_token_fields | wanted.per_token_fields,
        grpo_group_size=held.grpo_group_size if wanted.grpo_group_size is None else wanted.grpo_group_size,
        enums={**wanted.enums, **held.enums},
        dtypes={**wanted.dtypes, **held.dtypes},
    )


def with_fields_of(held: Definition, wanted: Definition) -> Definition:
    """`wanted`, and the fields that only `held` declares: an open partition keeps the fields that it was given."""
    kept = held.per_token_fields - set(wanted.fields)
    dtypes = {name: dtype for name, dtype in held.dtypes.items() if name not in wanted.fields}
    return replace(
        wanted,
        fields=_union(wanted.fields, held.fields),
        per_token_fields=wanted.per_token_fields | kept,
        dtypes={**wanted.dtypes, **dtypes},
    )


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _differences(held: Definition, wanted: Definition) -> Iterator[str]:
    """What the two contradict each other in, a clause each."""
    both = set(held.fields) & set(wanted.fields)
    for name in sorted((held.per_token_fields ^ wanted.per_token_fields) & both):
        has, lacks = "partition", "registration"
        if name in wanted.per_token_fields:
            has, lacks = lacks, has
        yield f"field {name!r} is per-token in the {has}, not in the {lacks}"
    for name in sorted(held.dtypes.keys() & wanted.dtypes.keys()):
        if held.dtypes[name] != wanted.dtypes[name]:
            yield f"field {name!r} is {held.dtypes[name]} in the partition, {wanted.dtypes[name]} in the registration"
    for name in sorted(held.enums.keys() & wanted.enums.keys()):
        if held.enums[name] != wanted.enums[name]:
            ours, theirs = (", ".join(each.enums[name])[:80] for each in (held, wanted))
            yield f"the enum of field {name!r} is ({ours}) in the partition, ({theirs}) in the registration"
    for what in ("max_deliveries", "grpo_group_size", "open", "clear_when_consumed", "digests"):
        has, wants = getattr(held, what), getattr(wanted, what)
        if has != wants and not (what == "grpo_group_size" and None in (has, wants)):
            yield f"{what} is {has} in the partition, {wants} in the registration"
