"""Checks of ids, names, tags and definitions that callers give. Each refusal says what breaks which rule."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Definition, Int64Array, Tags
from rl_dataplane.v1.element_types import ITEM_SIZES

MAX_DELIVERIES = (1 << 16) - 1
"""Deliveries of a row are counted up to this number."""
VERSION_TAG = "weight_version"
UNKNOWN_VERSION = (1 << 31) - 1
"""Above all that are."""
WEIGHT_VERSIONS = range(UNKNOWN_VERSION)
_INT64 = range(-(1 << 63), 1 << 63)


def check_name(what: str, name: str, limits: Limits) -> None:
    size = len(name.encode())
    if not 1 <= size <= limits.max_id_bytes:
        message = f"{what} must have 1 to {limits.max_id_bytes} bytes, got {size}: {name[:40]!r}"
        raise Refusal(Reason.INVALID_REQUEST, message)


def check_names(what: str, names: Sequence[str], limits: Limits) -> None:
    """Distinct, well-formed names. what: is named."""
    lengths = set(map(len, names))
    if min(lengths, default=1) < 1 or max(lengths, default=1) > limits.max_id_bytes or not "".join(names).isascii():
        for name in names:
            check_name(what, name, limits)
    if len(set(names)) < len(names):
        raise _duplicate(what, names)


def check_distinct(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise _duplicate(what, names)


def _duplicate(what: str, names: Sequence[str]) -> Refusal:
    seen: set[str] = set()
    twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return Refusal(Reason.DUPLICATE, f"duplicate {what} {twice!r} in one call", name=twice)


def check_sample_ids(sample_ids: Sequence[str], limits: Limits) -> None:
    """One to max_rows_per_call distinct, well-formed ids."""
    if not 1 <= len(sample_ids) <= limits.max_rows_per_call:
        message = f"a call must name 1 to {limits.max_rows_per_call} samples, got {len(sample_ids)}"
        raise Refusal(Reason.INVALID_REQUEST, message)
    check_names("sample id", sample_ids, limits)


def check_caller(caller: str, limits: Limits) -> None:
    """The name that a caller gives itself; it may be empty."""
    if len(caller.encode()) > limits.max_id_bytes:
        message = f"caller must have at most {limits.max_id_bytes} bytes, got {caller[:40]!r}..."
        raise Refusal(Reason.INVALID_REQUEST, message)


def check_reason(reason: str, limits: Limits) -> None:
    """Why a claim was released or a group aborted; any short text."""
    size = len(reason.encode())
    if size > limits.max_reason_bytes:
        message = f"reason must have at most {limits.max_reason_bytes} bytes, got {size}: {reason[:40]!r}..."
        raise Refusal(Reason.INVALID_REQUEST, message)


def check_generations(sample_ids: Sequence[str], generations: Int64Array | None) -> None:
    """None, or one generation for each row."""
    if generations is not None and generations.size != len(sample_ids):
        message = f"the call has generations for {generations.size} rows but names {len(sample_ids)} samples"
        raise Refusal(Reason.ROW_COUNT_MISMATCH, message, rows=generations.size, samples=len(sample_ids))


def check_definition(definition: Definition, limits: Limits) -> None:
    """An open partition may begin without fields."""
    check_name("partition id", definition.partition_id, limits)
    for what, names, least, most in (
        ("field", definition.fields, 0 if definition.open else 1, limits.max_fields),
        ("task", definition.tasks, 0, limits.max_tasks),
    ):
        if not least <= len(names) <= most:
            message = f"partition {definition.partition_id!r} must have {least} to {most} {what}s, got {len(names)}"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=definition.partition_id)
        check_names(f"{what} name", names, limits)
    undeclared = definition.per_token_fields - set(definition.fields)
    if undeclared:
        name = min(undeclared)
        message = f"partition {definition.partition_id!r}: per-token field {name!r} is not among its fields"
        raise Refusal(Reason.FIELD_NOT_DECLARED, message, partition_id=definition.partition_id, field=name)
    _check_dtypes(definition)
    if not 0 <= definition.max_deliveries <= MAX_DELIVERIES:
        message = (
            f"partition {definition.partition_id!r}: max_deliveries must be 0 to {MAX_DELIVERIES}, "
            f"got {definition.max_deliveries}"
        )
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=definition.partition_id)
    if definition.clear_when_consumed and not definition.tasks:
        message = f"partition {definition.partition_id!r} has no task, so no row would ever be cleared when consumed"
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=definition.partition_id)
    _check_enums(definition, limits)


def _check_dtypes(definition: Definition) -> None:
    """Refuse element types of fields that are not declared, and types that do not exist."""
    for name, dtype in definition.dtypes.items():
        where = f"partition {definition.partition_id!r}, field {name!r}"
        if name not in definition.fields:
            raise Refusal(Reason.FIELD_NOT_DECLARED, f"{where}: dtypes names a field that is not declared", field=name)
        if dtype != "object" and dtype not in ITEM_SIZES:
            message = f"{where}: {dtype!r} is not an element type; use object or one of {', '.join(ITEM_SIZES)}"
            raise Refusal(Reason.INVALID_REQUEST, message, field=name)


def _check_enums(definition: Definition, limits: Limits) -> None:
    """At most max_fields enums, with at most max_enum_names names together."""
    where = f"partition {definition.partition_id!r}"
    if len(definition.enums) > limits.max_fields:
        message = f"{where} has {len(definition.enums)} enums; the limit is {limits.max_fields} (max_fields)"
        raise Refusal(Reason.INVALID_REQUEST, message, max_fields=limits.max_fields)
    count = sum(map(len, definition.enums.values()))
    if count > limits.max_enum_names:
        message = f"{where} has {count} names in its enums; the limit is {limits.max_enum_names} (max_enum_names)"
        raise Refusal(Reason.INVALID_REQUEST, message, max_enum_names=limits.max_enum_names)
    for field, names in definition.enums.items():
        check_name("field name", field, limits)
        for name in names:
            if len(name.encode()) > limits.max_id_bytes:
                message = f"{where}, enum of field {field!r}: a name has at most {limits.max_id_bytes} bytes"
                raise Refusal(Reason.INVALID_REQUEST, message, field=field, max_id_bytes=limits.max_id_bytes)


def check_tags(sample_ids: Sequence[str], tags: Sequence[Tags] | None, limits: Limits) -> int:
    """None, or a dict of scalars for each row. Returns an estimate of their memory, from above."""
    if tags is None:
        return 0
    if len(tags) != len(sample_ids):
        message = f"the call has tags for {len(tags)} rows but names {len(sample_ids)} samples"
        raise Refusal(Reason.ROW_COUNT_MISMATCH, message, rows=len(tags), samples=len(sample_ids))
    size = 0
    short = limits.max_tag_bytes // 4  # characters, which surely have few enough bytes
    for sample_id, row_tags in zip(sample_ids, tags, strict=True):
        size += 240 + 140 * len(row_tags)
        for key, value in row_tags.items():
            kind = type(value)
            plain = kind is float or kind is bool or value is None
            if not (plain and type(key) is str and 0 < len(key) <= short) and not _is_tag(key, value, limits):
                message = (
                    f"sample {sample_id!r}, tag {str(key)[:40]!r}: a key must be a str of 1 to {limits.max_tag_bytes} "
                    f"bytes, a value None, bool, int of 64 bits, float, or str of at most {limits.max_tag_bytes} bytes"
                )
                raise Refusal(Reason.INVALID_REQUEST, message, sample_id=sample_id)
            if key == VERSION_TAG and value is not None:
                check_weight_version(f"sample {sample_id!r}: the tag {VERSION_TAG}", value, sample_id=sample_id)
            size += 4 * len(key) + (316 + 8 * len(value) if isinstance(value, str) else 0)  # once more in a column
    return size


def check_weight_version(what: str, version: object, **metadata: str) -> None:
    """An int of the range; a row of another version would be of an unknown one to every bound on staleness."""
    if type(version) is not int or version not in WEIGHT_VERSIONS:
        message = f"{what} must be an int from 0 to {WEIGHT_VERSIONS.stop - 1}, got {repr(version)[:40]}"
        raise Refusal(Reason.INVALID_REQUEST, message, **metadata)


def _is_tag(key: object, value: object, limits: Limits) -> bool:
    if not (isinstance(key, str) and 1 <= len(key.encode()) <= limits.max_tag_bytes):
        return False
    if isinstance(value, str):
        return len(value.encode()) <= limits.max_tag_bytes
    if isinstance(value, int) and not isinstance(value, bool):
        return value in _INT64
    return value is None or isinstance(value, (bool, float))
