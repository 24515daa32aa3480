"""Objects of the core as bytes and back: their attributes, what these refer to, and who refers to the same object.

The walk follows every attribute, so new state needs no line here. What is not plain (None, bool, int, float, str,
bytes) has a number, by which all that refer to it name it. So an object that is reachable twice is one object
afterwards, and objects may refer to each other in a circle. A *node* can change after it is made: an object, a dict, a
list, a set, a deque. A *value* is made complete: a tuple, an array, a member of an enum. Nodes are numbered from 0 up;
values from -1 down, each after the values that it has.

All is MessagePack in pieces, so that decoding needs little memory beside the objects, and arrays as they are:

    index     texts, layouts (a class and its attributes), what each node is, numbers of the roots
    pieces    values, then nodes, some thousands each
    arrays    the contents of long arrays, in the order of their values

Where a list, a tuple or the keys of a dict are strings, they are numbers of `texts`. So an id that is in several tables
is one string afterwards, and a million rows take no call of Python each.

Decoding makes objects without `__init__`. Names of classes are looked up in the modules of the core that
are already imported: nothing that the data name is imported, evaluated or called.
"""

from __future__ import annotations

import enum
import math
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import Any, Generic, NamedTuple, NoReturn, Protocol

import msgpack
import numpy as np
import numpy.typing as npt

from dataplane_server.collection import without_collection

_CORE = "dataplane_server.core."
_BASES = frozenset({object, dict, Exception, BaseException, Generic})
"""What classes of the core may derive from, beside each other."""
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_TYPES = {kind.__name__: kind for kind in _PLAIN}
_DTYPES = {dtype.str: dtype for dtype in (np.dtype(name).newbyteorder("<") for name in "?bhiqlBHIQLefd")}
_AT_ONCE = 4096
"""Nodes or values of a piece."""
_LONG = 1 << 16
"""Bytes of an array from which on its content is outside of the pieces."""
_CONTAINERS: tuple[type, ...] = (dict, OrderedDict, list, set, deque)
_OBJECT = len(_CONTAINERS)
_TUPLE, _RECORD, _FROZENSET, _ARRAY, _LONG_ARRAY, _SCALAR, _MEMBER, _TYPE = range(8)
_AS_THEY_ARE, _TEXTS, _NUMBERS, _MIXED = range(4)
"""Forms of items: plain ones; numbers of texts; numbers of nodes and values; plain ones beside lists of one number."""

Array = npt.NDArray[Any]


class Graph(NamedTuple):
    """Encoded objects. pieces: the index first. arrays: whose contents are outside of the pieces."""

    pieces: list[bytes]
    arrays: list[Array]


class Source(Protocol):
    """Gives the pieces of a graph, then the contents of its arrays."""

    def next(self) -> bytes | bytearray: ...

    def fill(self, content: memoryview) -> None: ...


def encode(roots: Mapping[str, object], instead: Mapping[str, object]) -> Graph:
    """Named objects. instead: what attributes of these names have in place of their values. TypeError names the path to
    an object that is not of the core.
    """
    with without_collection():
        return _Encoder(roots, instead).encode()


class Differences(NamedTuple):
    """How an earlier core differs from this one. renamed: its names of classes, and today's. added: by today's name of
    a class, attributes that it has since then, and what makes the value of each.
    """

    renamed: Mapping[str, str] = {}
    added: Mapping[str, Mapping[str, Callable[[], object]]] = {}


def decode(
    source: Source,
    most_bytes: int = sys.maxsize,
    differences: Differences = Differences(),  # noqa: B008 - immutable
) -> dict[str, Any]:
    """What was encoded. most_bytes: of the whole source, which bounds the memory that is taken before data come.
    differences: of the core that encoded it. ValueError for other data, and for classes that the core does not have.
    """
    try:
        with without_collection():
            return _Decoder(most_bytes, differences, *msgpack.unpackb(source.next())).decode(source)
    except (LookupError, TypeError, AttributeError, ArithmeticError, msgpack.UnpackException) as error:
        raise ValueError(f"not objects of this core: {error!r}") from error


def content_of(array: Array) -> memoryview:
    """The bytes of an array, in C order; its own memory if it is in this order."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


# -- classes -----------------------------------------------------------------------------------------------------------


def _classes() -> dict[str, type[Any]]:
    """Classes of the core, by name."""
    modules = [(name, module) for name, module in sys.modules.items() if name.startswith(_CORE)]
    found = [(name, kind) for name, module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return {_name(kind): kind for module, kind in found if kind.__module__ == module}


def _name(kind: type) -> str:
    return f"{kind.__module__.removeprefix(_CORE)}.{kind.__qualname__}"


def _slots(kind: type) -> list[str]:
    """Attributes that are not in `__dict__`."""
    slots = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ()) if not name.startswith("__")]
    return slots + ["args"] * issubclass(kind, BaseException)


def _is_open(kind: type) -> bool:
    """Whether attributes, and items of a dict, are all that objects of the class have."""
    return all(base in _BASES or base.__module__.startswith(_CORE) for base in kind.__mro__)


# -- encode ------------------------------------------------------------------------------------------------------------


class _Pieces:
    """Packs contents, some thousands to a piece."""

    def __init__(self) -> None:
        self.count = 0
        self._packer = msgpack.Packer()
        self._pieces: list[bytes] = []
        self._contents: list[bytes] = []

    def add(self, content: list[Any]) -> None:
        self._contents.append(self._packer.pack(content))
        self.count += 1
        if len(self._contents) == _AT_ONCE:
            self._cut()

    def all(self) -> list[bytes]:
        self._cut()
        return self._pieces

    def _cut(self) -> None:
        if self._contents:
            self._pieces.append(b"".join([self._packer.pack_array_header(len(self._contents)), *self._contents]))
            self._contents.clear()


class _Encoder:
    def __init__(self, roots: Mapping[str, object], instead: Mapping[str, object]) -> None:
        self._roots = roots
        self._instead = instead
        self._classes = _classes()
        self._known: dict[type, tuple[str, list[str]]] = {}  # name and slots
        self._texts: defaultdict[str, int] = defaultdict(count().__next__)
        self._layouts: defaultdict[tuple[str, ...], int] = defaultdict(count().__next__)
        self._arrays: list[Array] = []
        self._values = _Pieces()
        self._contents = _Pieces()  # of nodes
        self._nodes: list[Any] = []
        self._number_of: dict[int, int] = {}  # by id; all objects live as long as the walk
        self._owner_of: dict[int, object] = {}  # by id: where it was found

    def encode(self) -> Graph:
        roots = {name: self._number(root, self._roots) for name, root in self._roots.items()}
        kinds = [self._add(node) for node in self._nodes]  # which grows meanwhile
        values, contents = self._values.all(), self._contents.all()
        layouts = list(map(list, self._layouts))
        index = [list(self._texts), layouts, kinds, self._values.count, [len(values), len(contents)], roots]
        return Graph([msgpack.packb(index), *values, *contents], self._arrays)

    def _number(self, value: Any, owner: object) -> int:
        number = self._number_of.get(id(value))
        if number is None:
            self._owner_of[id(value)] = owner
            content = self._value(value)
            if content is None:
                number = len(self._nodes)
                self._nodes.append(value)
            else:
                self._pack(self._values, content, value)
                number = -self._values.count
            self._number_of[id(value)] = number
        return number

    def _items(self, items: Collection[Any], owner: object) -> tuple[int, list[Any]]:
        kinds = set(map(type, items))
        if kinds == {str}:
            return _TEXTS, list(map(self._texts.__getitem__, items))
        if kinds <= _PLAIN:
            return _AS_THEY_ARE, list(items)
        if not kinds & _PLAIN:
            return _NUMBERS, [self._number(item, owner) for item in items]
        return _MIXED, [item if type(item) in _PLAIN else [self._number(item, owner)] for item in items]

    def _pack(self, pieces: _Pieces, content: list[Any], owner: object) -> None:
        try:
            pieces.add(content)
        except OverflowError:
            self._refuse(owner, "has an int of more than 64 bits")

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, value: Any) -> list[Any] | None:
        """The content of a value; None for a node."""
        kind = type(value)
        if kind is tuple:
            return [_TUPLE, *self._items(value, value)]
        if kind is np.ndarray:
            return self._array(value)
        if isinstance(value, tuple):
            return [_RECORD, self._class(value)[0], *self._items(value, value)]
        if kind is frozenset:
            return self._frozenset(value)
        if isinstance(value, np.generic):
            return [_SCALAR, self._dtype(value), value.tobytes()]
        if isinstance(value, enum.Enum):
            return [_MEMBER, self._class(value)[0], value.name]
        if kind is type and value in _PLAIN:
            return [_TYPE, value.__name__]
        return None

    def _array(self, array: Array) -> list[Any]:
        if array.nbytes < _LONG:
            return [_ARRAY, self._dtype(array), array.shape, array.tobytes()]
        self._arrays.append(array)
        return [_LONG_ARRAY, self._dtype(array), array.shape]

    def _dtype(self, value: Array | np.generic) -> str:
        name: str = value.dtype.str
        if name not in _DTYPES:
            self._refuse(value, f"has elements of type {value.dtype}")
        return name

    def _frozenset(self, value: frozenset[Any]) -> list[Any]:
        form, items = self._items(value, value)
        if form in (_NUMBERS, _MIXED):
            self._refuse(value, "is a frozenset whose members are not plain")
        return [_FROZENSET, form, items]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _add(self, node: Any) -> Any:
        """Pack what a node has. Returns what it is: a kind of container, with the length of a deque; or a layout."""
        kind = type(node)
        what: Any = _CONTAINERS.index(kind) if kind in _CONTAINERS else None
        content: list[Any] = []
        if what is None:
            held = self._attributes(node)
            layout = (self._class(node)[0], *held)
            what = _OBJECT + self._layouts[layout]
            content += self._items(held.values(), node)
        if isinstance(node, dict):
            content += [*self._items(node.keys(), node), *self._items(node.values(), node)]
        elif kind in _CONTAINERS:
            content += self._items(node, node)
        self._pack(self._contents, content, node)
        return [what, node.maxlen] if kind is deque else what

    def _attributes(self, node: Any) -> dict[str, Any]:
        name, slots = self._class(node)
        if not _is_open(type(node)):
            self._refuse(node, f"is a {name}, which derives from a class that is not of the core")
        held = {name: getattr(node, name) for name in slots}
        held.update(getattr(node, "__dict__", {}))
        for name in held.keys() & self._instead.keys():
            held[name] = self._instead[name]
        return held

    def _class(self, value: object) -> tuple[str, list[str]]:
        """Name and slots of its class."""
        kind = type(value)
        if kind not in self._known:
            name = _name(kind)
            if self._classes.get(name) is not kind:
                self._refuse(value, f"is a {kind.__module__}.{kind.__qualname__}")
            self._known[kind] = name, _slots(kind)
        return self._known[kind]

    # -- refusal -------------------------------------------------------------------------------------------------------

    def _refuse(self, value: object, why: str) -> NoReturn:
        path, owner = "", self._owner_of.get(id(value))
        while owner is not None:
            path = self._step(owner, value) + path
            value, owner = owner, self._owner_of.get(id(owner))
        raise TypeError(f"{path} {why}; a checkpoint has objects of the core, and arrays and containers of these")

    def _step(self, owner: Any, value: object) -> str:
        """Where a value is in its owner."""
        if owner is self._roots:
            names: list[str] = [name for name, root in self._roots.items() if root is value]
            return names[0]
        listed = enumerate(owner) if isinstance(owner, (list, tuple, set, deque)) else ()
        pairs = owner.items() if isinstance(owner, dict) else listed
        steps = [f"[{key!r}]" for key, item in pairs if value is item or value is key]
        if type(owner) not in _CONTAINERS and not isinstance(owner, tuple):
            steps += [f".{name}" for name, held in self._attributes(owner).items() if held is value]
        return steps[0]


# -- decode ------------------------------------------------------------------------------------------------------------


class _Decoder:
    def __init__(
        self,
        most_bytes: int,
        differences: Differences,
        texts: list[str],
        layouts: list[Any],
        kinds: list[Any],
        values: int,
        pieces: list[int],
        roots: dict[str, int],
    ) -> None:
        if not 0 <= values <= most_bytes:
            raise ValueError(f"{values} values in {most_bytes} bytes")
        self._most_bytes = most_bytes
        self._classes = _classes()
        self._texts = texts
        self._renamed = differences.renamed
        self._layouts = [(self._open_class(name, names), names) for name, *names in layouts]
        self._added = [list(differences.added.get(_name(kind), {}).items()) for kind, _ in self._layouts]
        self._kinds = kinds
        self._value_pieces, self._node_pieces = pieces
        self._roots = roots
        self._made = [*map(self._empty, kinds), *repeat(None, values)]  # nodes; values from the end
        self._arrays: list[Array] = []
        self._later: list[tuple[Any, list[Any]]] = []  # keys may be objects whose hash is that of their attributes

    def decode(self, source: Source) -> dict[str, Any]:
        for number, content in enumerate(_contents(source, self._value_pieces), 1):
            self._made[-number] = self._value(*content)
        nodes = self._made[: len(self._kinds)]
        for what, node, content in zip(self._kinds, nodes, _contents(source, self._node_pieces), strict=True):
            self._fill(what, node, content)
        for node, content in self._later:
            self._fill_container(node, content)
        for array in self._arrays:
            source.fill(content_of(array))
        return {name: self._made[number] for name, number in self._roots.items()}

    def _open_class(self, name: str, names: list[str]) -> type[Any]:
        kind = self._classes[self._renamed.get(name, name)]
        if not _is_open(kind) or any(attribute.startswith("__") for attribute in names):
            raise ValueError(f"{name} is not a class of the core with the attributes {names}")
        return kind

    def _empty(self, what: Any) -> Any:
        """A node, yet without what it has."""
        if isinstance(what, list):
            return deque(maxlen=what[1])
        kind = _CONTAINERS[what] if what < _OBJECT else self._layouts[what - _OBJECT][0]
        return kind.__new__(kind)

    def _items(self, form: int, items: list[Any]) -> list[Any]:
        if form == _AS_THEY_ARE:
            return items
        if form == _TEXTS:
            return list(map(self._texts.__getitem__, items))
        if form == _NUMBERS:
            return list(map(self._made.__getitem__, items))
        return [self._made[item[0]] if type(item) is list else item for item in items]

    def _fill(self, what: Any, node: Any, content: list[Any]) -> None:
        if type(what) is int and what >= _OBJECT:
            names, held = self._layouts[what - _OBJECT][1], self._items(*content[:2])
            if len(names) != len(held):
                raise ValueError(f"an object has {len(held)} attributes, its layout {len(names)}")
            deque(map(object.__setattr__, repeat(node), names, held), maxlen=0)
            for name, first_value in self._added[what - _OBJECT]:
                object.__setattr__(node, name, first_value())
            content = content[2:]
        if content and content[0] in (_NUMBERS, _MIXED) and isinstance(node, (dict, set)):
            self._later.append((node, content))
        elif content:
            self._fill_container(node, content)

    def _fill_container(self, node: Any, content: list[Any]) -> None:
        items = self._items(*content[:2])
        if isinstance(node, dict):
            node.update(zip(items, self._items(*content[2:]), strict=True))
        elif isinstance(node, set):
            node.update(items)
        else:
            node.extend(items)

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, code: int, *rest: Any) -> Any:
        if code == _TUPLE:
            return tuple(self._items(*rest))
        if code == _RECORD:
            return self._classes[rest[0]]._make(self._items(*rest[1:]))
        if code == _FROZENSET:
            return frozenset(self._items(*rest))
        if code == _ARRAY:
            return np.frombuffer(rest[2], _DTYPES[rest[0]]).reshape(rest[1]).copy()  # it owns its memory, to be resized
        if code == _LONG_ARRAY:
            return self._long_array(_DTYPES[rest[0]], rest[1])
        if code == _SCALAR:
            return np.frombuffer(rest[1], _DTYPES[rest[0]])[0]
        if code == _MEMBER:
            return self._classes[rest[0]].__members__[rest[1]]
        return _TYPES[rest[0]]

    def _long_array(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        """An array whose content comes later."""
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > self._most_bytes:
            raise ValueError(f"an array of shape {shape} in {self._most_bytes} bytes")
        self._arrays.append(np.empty(shape, dtype))
        return self._arrays[-1]


def _contents(source: Source, pieces: int) -> Iterator[list[Any]]:
    for _ in range(pieces):
        yield from msgpack.unpackb(source.next())
