"""Checks of the names and numbers that callers pass, before they go into a message.

Types are checked exactly, because a wrong one would be sent as something else: a str as a list of its letters, a float
as an integer. `where` names the call and begins the message of each error. The server checks its limits itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TypeVar, get_args

from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError

T = TypeVar("T")

_MAX_LENGTH = (1 << 31) - 1
_MAX_SECONDS = 1e9
_MAX_GENERATION = (1 << 63) - 1


@contextmanager
def blame_caller(where: str) -> Iterator[None]:
    """A context manager that turns the TypeErrors and ValueErrors of values that cannot be sent into ours."""
    try:
        yield
    except TypeError as error:
        raise UnsupportedTypeError(f"{where}: {error}") from None
    except ValueError as error:
        reason = error.reason if isinstance(error, InvalidArgumentError) else ""
        raise InvalidArgumentError(f"{where}: {error}", reason=reason) from None


def checked_names(what: str, names: Iterable[str], where: str) -> list[str]:
    """Names of samples, fields or tasks as a list; a plain str is refused."""
    if isinstance(names, str):
        raise UnsupportedTypeError(
            f"{where}: {what}s must be a sequence of str, got the str {names!r}; write [{names!r}]"
        )
    if not isinstance(names, Iterable):
        raise UnsupportedTypeError(f"{where}: {what}s must be a sequence of str, got {type(names).__name__}")
    listed = list(names)
    try:
        "".join(listed).encode()  # one check for all, because batches have thousands of ids
    except (TypeError, UnicodeEncodeError):
        for name in listed:
            checked_name(what, name, where)
    return listed


def checked_name(what: str, name: str, where: str) -> str:
    if not isinstance(name, str):
        raise UnsupportedTypeError(f"{where}: a {what} must be a str, got {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{where}: {what} {name!r} cannot be encoded as UTF-8") from None
    return name


def checked_mapping(what: str, given: Mapping[str, T], where: str) -> Mapping[str, T]:
    if not isinstance(given, Mapping):
        raise UnsupportedTypeError(f"{where}: {what} must be a mapping, got {given!r}")
    return given


def _all_plain(values: object, kind: type) -> bool:
    """Whether they are several values, all of exactly this type."""
    return isinstance(values, Iterable) and set(map(type, values)) <= {kind}


def checked_count(what: str, count: int, where: str, *, least: int, most: int) -> int:
    try:
        checked = operator.index(count)
    except TypeError:
        raise UnsupportedTypeError(f"{where}: {what} must be an int, got {type(count).__name__}") from None
    if not least <= checked <= most:
        raise InvalidArgumentError(f"{where}: {what} must be {least} to {most}, got {checked}")
    return checked


def optional_count(what: str, count: int | None, where: str, *, least: int, most: int) -> int | None:
    return None if count is None else checked_count(what, count, where, least=least, most=most)


def checked_lengths(lengths: Sequence[int] | None, sample_ids: Sequence[str], where: str) -> list[int] | None:
    """Tokens of each row, -1 if unknown."""
    if lengths is None:
        return None
    try:
        checked = list(lengths) if _all_plain(lengths, int) else [operator.index(length) for length in lengths]
    except TypeError as error:
        raise UnsupportedTypeError(f"{where}: sequence_lengths must be ints: {error}") from None
    if len(checked) != len(sample_ids):
        message = f"{where}: {len(checked)} sequence_lengths, but the call names {len(sample_ids)} samples"
        raise InvalidArgumentError(message, reason="ROW_COUNT_MISMATCH")
    if min(checked, default=0) >= -1 and max(checked, default=0) <= _MAX_LENGTH:
        return checked
    for sample_id, length in zip(sample_ids, checked, strict=True):
        if not -1 <= length <= _MAX_LENGTH:
            message = f"{where}: sample {sample_id!r}: sequence length must be -1 to {_MAX_LENGTH}, got {length}"
            raise InvalidArgumentError(message)
    return checked


def checked_generations(
    generations: Sequence[int] | None, sample_ids: Sequence[str], where: str
) -> Sequence[int] | None:
    """The generation of each row, or None if the ids alone name the rows."""
    if generations is None:
        return None
    if not _all_plain(generations, int):
        raise UnsupportedTypeError(f"{where}: generations must be ints, as in a meta")
    if len(generations) != len(sample_ids):
        message = f"{where}: {len(generations)} generations, but the call names {len(sample_ids)} samples"
        raise InvalidArgumentError(message, reason="ROW_COUNT_MISMATCH")
    if min(generations, default=0) < 0 or max(generations, default=0) > _MAX_GENERATION:
        raise InvalidArgumentError(f"{where}: a generation must be 0 to {_MAX_GENERATION}")
    return generations


def checked_number(what: str, value: float, where: str) -> float:
    given: object = value
    if not isinstance(given, Real):
        raise UnsupportedTypeError(f"{where}: {what} must be a number, got {given!r}")
    return value


def checked_flag(what: str, value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise UnsupportedTypeError(f"{where}: {what} must be True or False, got {value!r}")
    return value


def checked_choice(what: str, chosen: T, known: object, where: str) -> T:
    """known: the Literal of all that may be chosen."""
    if chosen not in get_args(known):
        raise InvalidArgumentError(f"{where}: {what} must be one of {get_args(known)}, got {chosen!r}")
    return chosen


def checked_seconds(what: str, seconds: float, where: str) -> int:
    """The time in nanoseconds."""
    if not 0 <= checked_number(what, seconds, where) <= _MAX_SECONDS:
        raise InvalidArgumentError(f"{where}: {what} must be 0 to {_MAX_SECONDS:g} seconds, got {seconds}")
    return int(seconds * 1e9)
