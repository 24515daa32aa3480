"""The body of a put: JSON, parsed from bytes that a peer has chosen, checked key by key.

    {"samples": [{"sample_id": "p0-0", "fields": {...}, "tags": {...}, "sequence_length": 5}, ...],
     "request_id": "...", "group_id": "p0", "weight_version": 7, "dtypes": {"reward": "float32"}, "create_only": true}

Only `samples`, and the `sample_id` of each, are required. A key that is not known is refused, so a typing error does
not lose data. NaN and Infinity are not JSON and are refused.

Lists, objects and names are counted in the bytes of a body before anything is made of it. Its samples, and the fields
and tags of each, are counted before they are looked at. The core checks ids, tags and all other limits.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, NoReturn

import msgpack
from xxhash import xxh3_128_digest

from dataplane_server.collection import without_collection
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal

MAX_ENTRIES = 1 << 19
"""Brackets, braces and colons of a body, those in strings included."""
_KEYS = frozenset({"samples", "request_id", "group_id", "weight_version", "dtypes", "create_only"})
_SAMPLE_KEYS = frozenset({"sample_id", "fields", "tags", "sequence_length"})
_MOST = (1 << 31) - 2


@dataclass(frozen=True)
class PutSample:
    """One sample of a put. sequence_length: in tokens, -1 if it is not given."""

    sample_id: str
    fields: dict[str, Any]
    tags: dict[str, Any]
    sequence_length: int


@dataclass(frozen=True)
class PutBody:
    """A put. request_id: a new one if the body has none. group_id: None for a put outside of groups. dtypes: element
    types of fields, by name. create_only: refused if one of the samples exists.
    """

    request_id: str
    group_id: str | None
    weight_version: int | None
    dtypes: dict[str, str]
    samples: list[PutSample]
    create_only: bool

    def digest(self, partition_id: str) -> bytes:
        """16 bytes for all that the request asks for; other bytes for another request. The order of keys does not
        matter, but inside of a field's value.
        """
        of_samples = [
            (s.sample_id, s.sequence_length, sorted(s.fields.items()), sorted(s.tags.items())) for s in self.samples
        ]
        of_all = (partition_id, self.group_id, self.weight_version, sorted(self.dtypes.items()), self.create_only)
        return xxh3_128_digest(msgpack.packb([of_all, of_samples], default=str))


def parse_body(data: bytes, limits: Limits) -> PutBody:
    """Refusal INVALID_REQUEST, which names the sample and the key, or the limit, for what is no such body."""
    count = sum(map(data.count, (b"[", b"{", b":")))
    _check_count("the body", count, "max_entries", MAX_ENTRIES, "brackets, braces and colons")
    body = _mapping("the body", _parsed(data), _KEYS)
    samples = body.get("samples")
    if not isinstance(samples, list):
        raise refused("samples must be a list with an object for each sample")
    _check_count("samples", len(samples), "max_rows_per_call", limits.max_rows_per_call)
    version, group_id = body.get("weight_version"), body.get("group_id")
    return PutBody(
        request_id=_text("request_id", body.get("request_id", uuid.uuid4().hex)),
        group_id=None if group_id is None else _text("group_id", group_id),
        weight_version=None if version is None else _number("weight_version", version),
        dtypes=_names("dtypes", body.get("dtypes", {}), "max_fields", limits.max_fields),
        samples=[_sample(f"sample {number}", sample, limits) for number, sample in enumerate(samples)],
        create_only=_flag("create_only", body.get("create_only", False)),
    )


def refused(message: str, reason: Reason = Reason.INVALID_REQUEST, **metadata: str | int) -> Refusal:
    return Refusal(reason, message, **metadata)


def _sample(where: str, value: object, limits: Limits) -> PutSample:
    sample = _mapping(where, value, _SAMPLE_KEYS)
    sample_id = _text(f"sample_id of {where}", sample.get("sample_id"))
    where = f"of sample {sample_id!r}"
    length = sample.get("sequence_length")
    return PutSample(
        sample_id,
        _names(f"fields {where}", sample.get("fields", {}), "max_fields", limits.max_fields),
        _names(f"tags {where}", sample.get("tags", {}), "max_tags_per_row", limits.max_tags_per_row),
        -1 if length is None else _number(f"sequence_length {where}", length),
    )


def _parsed(data: bytes) -> object:
    try:
        with without_collection():  # a million lists would start hundreds of them
            return json.loads(data.decode(), parse_constant=_refuse_constant, **_GIVING_WAY)
    except RecursionError:
        raise refused("the body is nested too deeply") from None
    except ValueError as error:
        raise refused(f"the body is not JSON in UTF-8: {error}") from None


def _unchanged(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _integer(text: str) -> int:
    return int(text)


def _float(text: str) -> float:
    return float(text)


_GIVING_WAY: dict[str, Any] = {"object_hook": _unchanged, "parse_int": _integer, "parse_float": _float}
"""Functions of Python, between which other threads get their turns. The parser, which is C, keeps them waiting."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; numbers must be finite")


def _mapping(what: str, value: object, known: frozenset[str]) -> dict[str, Any]:
    found = _object(what, value)
    for key in found:
        if key not in known:
            raise refused(f"{what} has the unknown key {_shown(key)}; known are {', '.join(sorted(known))}")
    return found


def _names(what: str, value: object, limit: str, most: int) -> dict[str, Any]:
    """Values by names that the caller chooses."""
    found = _object(what, value)
    _check_count(what, len(found), limit, most)
    for name in found:
        _text(f"a name in {what}", name)
    return found


def _object(what: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(f"{what} must be an object, got {_shown(value)}")
    return value


def _check_count(what: str, count: int, limit: str, most: int, entries: str = "entries") -> None:
    if count > most:
        message = f"{what} has {count} {entries}; the limit is {most} ({limit})"
        raise refused(message, Reason.INVALID_REQUEST, **{limit: most})


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise refused(f"{what} must be a string, got {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refused(f"{what} has half of a surrogate pair: {_shown(value)}") from None
    return value


def _number(what: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise refused(f"{what} must be an integer from 0 to {_MOST}, got {_shown(value)}")
    return value


def _flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise refused(f"{what} must be true or false, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    try:
        return json.dumps(value)[:80]
    except RecursionError:
        return "a value that is nested too deeply to show"
