"""Messages as records and back: what a dataclass and a message have under one name needs no code.

The annotation of a field says how it is carried:

- Numbers, text, bytes and what holds them: as they are. `X | None` is a field that need not be set, or is empty.
- `name_s: float` is the duration `name` in seconds, never negative.
- A `Literal` is an enum, by name. UNSPECIFIED is None where that is allowed, else the default of the field. A field
  without a default refuses it.
- A dataclass is a message, a sequence or set a repeated field, a mapping a map, read in the order of its keys. A
  sequence may be a message that has nothing else.

All else is declared beside the pair. What only one side has is a TypeError when the pair is compiled, unless it is left
out on purpose. A compiled pair looks nothing up: it gets all attributes at once, and converts those that need it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

Convert = Callable[[Any], Any]
R = TypeVar("R")
M = TypeVar("M", bound=Message)

_PLAIN = (str, bytes, int, float, bool, Literal)
_UNUSED = "__class__"
"""What every object has: in the place of an attribute, where a value is made of the whole source."""
_VALUE, _GIVEN, _WHOLE = range(3)
"""What is converted: the value of the attribute, the same unless it is empty (which is None), or the whole source."""


def seconds(value: Duration) -> float:
    """A duration in seconds, never negative."""
    return max(0.0, value.seconds + value.nanos / 1e9)


def duration(value_s: float) -> Duration:
    """A duration of so many seconds."""
    return Duration(seconds=int(value_s), nanos=int(value_s % 1 * 1e9))


class _Part(NamedTuple):
    """A field of the result, the attribute of the source that it comes from, and how it is converted, if it is."""

    name: str
    source: str
    convert: Convert | None
    of: int = _VALUE


class Mapper:
    """Compiles pairs. reads, writes: conversions of annotations that follow no rule; that of a read is made for each
    field, by its name. unknown: the error about a number that an enum, by its name, does not have.
    """

    def __init__(
        self,
        reads: Mapping[Any, Callable[[str], Convert]],
        writes: Mapping[Any, Convert],
        unknown: Callable[[str, int], Exception],
    ) -> None:
        self._reads = reads
        self._writes = writes
        self._unknown = unknown
        self._readers: dict[Any, Convert] = {}
        self._writers: dict[Any, Convert] = {}

    def reader(
        self, kind: type[R], message: type[M], /, *, leave: Collection[str] = (), **others: str | Convert
    ) -> Callable[[M], R]:
        """What makes a record of a message. others: fields of the record that have another name in the message, or what
        makes their value of the whole message. leave: what only one side has; a record gets its default.
        """
        hints, used = get_type_hints(kind), {*others, *leave}
        fields: dict[str, Any] = dict(message.DESCRIPTOR.fields_by_name)
        parts = []
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # kind is a dataclass
            source = others.get(field.name, field.name)
            if callable(source):
                parts.append(_Part(field.name, _UNUSED, source, _WHOLE))
            elif field.name in leave:
                parts.append(_Part(field.name, _UNUSED, _default_of(field), _WHOLE))
            else:
                found = _found((source, source.removesuffix("_s")), fields, message)
                convert = self._reading(hints[field.name], fields[found], field.default)
                if not _may_be_none(hints[field.name]):
                    parts.append(_Part(field.name, found, convert))
                elif fields[found].has_presence:
                    parts.append(_Part(field.name, _UNUSED, _if_set(found, convert), _WHOLE))
                else:
                    parts.append(_Part(field.name, found, convert or _as_it_is, _GIVEN))
                used.add(found)
        _check_used(fields.keys() - used, message)
        get, special = _compiled(parts)

        def read(source: M) -> R:
            values = [*get(source)]
            for place, of, convert in special:
                if of == _VALUE:
                    values[place] = convert(values[place])
                elif of == _WHOLE:
                    values[place] = convert(source)
                else:
                    values[place] = convert(values[place]) if values[place] else None
            return kind(*values)

        self._readers[kind, message.DESCRIPTOR] = read
        return read

    def writer(
        self,
        kind: type[R],
        message: type[M],
        /,
        *,
        inline: str = "",
        leave: Collection[str] = (),
        **others: str | Convert,
    ) -> Callable[[R], M]:
        """What makes a message of a record. others, leave: as of `reader`, by fields of the message. inline: a
        record in the record, whose fields the message has.
        """
        hints, used = get_type_hints(kind), {*others, *leave}
        if inline:
            hints |= {f"{inline}.{name}": hint for name, hint in get_type_hints(hints.pop(inline)).items()}
        parts = []
        for field in message.DESCRIPTOR.fields:
            source = others.get(field.name, field.name)
            if callable(source):
                parts.append(_Part(field.name, _UNUSED, source, _WHOLE))
            elif field.name not in leave:
                found = _found((source, f"{source}_s", f"{inline}.{source}"), hints, kind)
                parts.append(_Part(field.name, found, self._writing(hints[found], field)))
                used.add(found)
        _check_used(hints.keys() - used, kind)
        names = [part.name for part in parts]
        get, special = _compiled(parts)
        optional = {field.name for field in message.DESCRIPTOR.fields if field.has_presence}

        def write(record: R) -> M:
            values = [*get(record)]
            for place, of, convert in special:
                values[place] = convert(values[place] if of == _VALUE else record)
            pairs = zip(names, values, strict=True)
            return message(**{name: value for name, value in pairs if value or name in optional})

        self._writers[kind, message.DESCRIPTOR] = write
        return write

    def _reading(self, hint: Any, field: Any, default: Any = dataclasses.MISSING) -> Convert | None:
        """What converts a value of the field; None if nothing has to."""
        bare = _bare(hint)
        kind, arguments = get_origin(bare) or bare, get_args(bare)
        for known in (hint, bare):
            if known in self._reads:
                return self._reads[known](field.name)
        if field.enum_type is not None:
            return self._names(field.enum_type, arguments, None if _may_be_none(hint) else default)
        if dataclasses.is_dataclass(kind):
            compiled = self._readers.get((kind, field.message_type))
            return compiled or self.reader(kind, GetMessageClass(field.message_type))  # type: ignore[arg-type]
        if kind in _PLAIN:
            return seconds if _is_duration(field) else None
        if issubclass(kind, Mapping):
            convert = self._reading(arguments[1], field.message_type.fields_by_name["value"]) or _as_it_is
            return lambda entries: {key: convert(value) for key, value in sorted(entries.items())}
        if not field.is_repeated:
            (only,) = field.message_type.fields
            get, convert = attrgetter(only.name), self._reading(hint, only) or _as_it_is
            return lambda message: convert(get(message))
        made, of_each = kind if kind in (tuple, frozenset) else list, self._reading(arguments[0], field)
        return made if of_each is None else lambda values: made(map(of_each, values))

    def _names(self, enum: Any, choices: Collection[str], unspecified: Any) -> Convert:
        names: dict[int, Any] = {} if unspecified is dataclasses.MISSING else {0: unspecified}
        names |= {number: name for name, number in _numbers(enum, choices).items()}

        def name_of(number: int) -> Any:
            try:
                return names[number]
            except KeyError:
                raise self._unknown(enum.name, number) from None

        return name_of

    def _writing(self, hint: Any, field: Any) -> Convert | None:
        """What converts to a value of the field; None if nothing has to."""
        bare = _bare(hint)
        convert = self._writes.get(bare) or self._writing_by_rule(bare, field)
        if convert is None or not _may_be_none(hint):
            return convert
        return lambda value: None if value is None else convert(value)

    def _writing_by_rule(self, hint: Any, field: Any) -> Convert | None:
        kind, arguments = get_origin(hint) or hint, get_args(hint)
        if field.enum_type is not None:
            return _numbers(field.enum_type, arguments).__getitem__
        if dataclasses.is_dataclass(kind):
            compiled = self._writers.get((kind, field.message_type))
            return compiled or self.writer(kind, GetMessageClass(field.message_type))  # type: ignore[arg-type]
        if kind in _PLAIN:
            return duration if _is_duration(field) else None
        if issubclass(kind, Mapping):
            of_value = self._writing(arguments[1], field.message_type.fields_by_name["value"])
            return of_value and (lambda entries: {key: of_value(value) for key, value in entries.items()})
        if not field.is_repeated:
            (only,) = field.message_type.fields
            around, convert = GetMessageClass(field.message_type), self._writing(hint, only) or _as_it_is
            return lambda value: around(**{only.name: convert(value)})
        of_each = self._writing(arguments[0], field)
        return of_each and (lambda values: map(of_each, values))


def _compiled(parts: Collection[_Part]) -> tuple[Convert, tuple[tuple[int, int, Convert], ...]]:
    """What gets the sources of the parts, and the conversions: place, of what, how."""
    sources = [part.source for part in parts]
    get = attrgetter(*sources) if len(sources) > 1 else lambda whole: [getattr(whole, name) for name in sources]
    special = [(place, part.of, part.convert) for place, part in enumerate(parts) if part.convert is not None]
    return get, tuple(special)


def _numbers(enum: Any, choices: Collection[str]) -> dict[str, int]:
    """The numbers of an enum, whose names have a common prefix. TypeError if it does not have just these choices."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    numbers = {value.name.removeprefix(prefix).lower(): value.number for value in enum.values if value.number}
    if numbers.keys() != set(choices):
        raise TypeError(f"{enum.name} has {sorted(numbers)}, and the annotation {sorted(choices)}")
    return numbers


def _found(names: Sequence[str], among: Collection[str], other: type) -> str:
    for name in names:
        if name in among:
            return name
    raise TypeError(f"{other.__name__} has no {names[0]}")


def _check_used(left: Collection[str], kind: type) -> None:
    if left:
        raise TypeError(f"{sorted(left)} of {kind.__name__} have no counterpart")


def _default_of(field: dataclasses.Field[Any]) -> Convert:
    """What makes the default of a field that is not read. TypeError if there is none."""
    factory = field.default_factory
    if factory is not dataclasses.MISSING:
        return lambda _: factory()
    if field.default is dataclasses.MISSING:
        raise TypeError(f"{field.name} has no default")
    return lambda _: field.default


def _bare(hint: Any) -> Any:
    """The annotation of a value that is there."""
    return next(given for given in get_args(hint) if given is not type(None)) if _may_be_none(hint) else hint


def _may_be_none(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _is_duration(field: Any) -> bool:
    return field.message_type is not None and field.message_type.full_name == Duration.DESCRIPTOR.full_name


def _as_it_is(value: Any) -> Any:
    return value


def _if_set(name: str, convert: Convert | None) -> Convert:
    get = attrgetter(name)
    if convert is None:
        return lambda message: get(message) if message.HasField(name) else None
    return lambda message: convert(get(message)) if message.HasField(name) else None
