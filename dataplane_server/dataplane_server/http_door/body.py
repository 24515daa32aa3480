"""The body of a put: JSON, parsed from bytes that a peer has chosen, checked key by key.

    {"samples": [{"sample_id": "p0-0", "fields": {...}, "tags": {...}, "sequence_length": 5}, ...],
     "request_id": "...", "group_id": "p0", "weight_version": 7, "dtypes": {"reward": "float32"}, "create_only": true}

Only `samples`, and the `sample_id` of each, are required. A key that is not known is refused, so a typing error does
not lose data. NaN and Infinity are not JSON and are refused. The core checks ids, tags and limits.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, NoReturn

import msgpack
from xxhash import xxh3_128_digest

from dataplane_server.collection import without_collection
from dataplane_server.core.calls.refusal import Reason, Refusal

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


def parse_body(data: bytes) -> PutBody:
    """Refusal INVALID_REQUEST, which names the sample and the key, for what is no such body."""
    body = _mapping("the body", _parsed(data), _KEYS)
    samples = body.get("samples")
    if not isinstance(samples, list):
        raise refused("samples must be a list with an object for each sample")
    version, group_id = body.get("weight_version"), body.get("group_id")
    return PutBody(
        request_id=_text("request_id", body.get("request_id", uuid.uuid4().hex)),
        group_id=None if group_id is None else _text("group_id", group_id),
        weight_version=None if version is None else _number("weight_version", version),
        dtypes=_mapping("dtypes", body.get("dtypes", {})),
        samples=[_sample(f"sample {number}", sample) for number, sample in enumerate(samples)],
        create_only=_flag("create_only", body.get("create_only", False)),
    )


def refused(message: str, reason: Reason = Reason.INVALID_REQUEST, **metadata: str | int) -> Refusal:
    return Refusal(reason, message, **metadata)


def _sample(where: str, value: object) -> PutSample:
    sample = _mapping(where, value, _SAMPLE_KEYS)
    sample_id = _text(f"sample_id of {where}", sample.get("sample_id"))
    where = f"of sample {sample_id!r}"
    length = sample.get("sequence_length")
    return PutSample(
        sample_id,
        _mapping(f"fields {where}", sample.get("fields", {})),
        _mapping(f"tags {where}", sample.get("tags", {})),
        -1 if length is None else _number(f"sequence_length {where}", length),
    )


def _parsed(data: bytes) -> object:
    try:
        with without_collection():  # a million lists would start hundreds of them
            return json.loads(data.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise refused("the body is nested too deeply") from None
    except ValueError as error:
        raise refused(f"the body is not JSON in UTF-8: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; numbers must be finite")


def _mapping(what: str, value: object, known: frozenset[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(f"{what} must be an object, got {_shown(value)}")
    for key in value:
        if known is None:
            _text(f"a name in {what}", key)
        elif key not in known:
            raise refused(f"{what} has the unknown key {_shown(key)}; known are {', '.join(sorted(known))}")
    return value


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
