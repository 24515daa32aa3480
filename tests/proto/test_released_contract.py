"""Within v1 fields and methods are only added: all that the last release had is there, under its number and type.

`released.binpb` is the contract of the last release, as `buf build proto --exclude-source-info -o` writes it. `make
proto-check` asks buf the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from rl_dataplane.v1 import data_plane_pb2, local_pb2

FILE = Path(__file__).with_name("released.binpb")
Files = list[descriptor_pb2.FileDescriptorProto]


def released() -> Files:
    known = descriptor_pb2.FileDescriptorSet.FromString(FILE.read_bytes())
    return [file for file in known.file if file.package == "rl_dataplane.v1"]


def present() -> Files:
    files = [descriptor_pb2.FileDescriptorProto() for _ in range(2)]
    for module, file in zip((data_plane_pb2, local_pb2), files, strict=True):
        module.DESCRIPTOR.CopyToProto(file)
    return files


def promises(files: Files) -> set[str]:
    """What callers rely on, a line each."""
    return {line for file in files for line in (*messages(file), *methods(file), *enums(file.package, file.enum_type))}


def messages(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    nested = [(file.package, message) for message in file.message_type]
    for scope, message in nested:
        name = f"{scope}.{message.name}"
        nested += [(name, inner) for inner in message.nested_type]
        yield from enums(name, message.enum_type)
        for field in message.field:
            yield f"{name}.{field.name} = {field.number}: {field.label} {field.type} {field.type_name}"
        yield from (
            f"{name} reserves {number}" for gap in message.reserved_range for number in range(gap.start, gap.end)
        )


def methods(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    for service in file.service:
        for each in service.method:
            streams = each.client_streaming, each.server_streaming
            yield f"{service.name}.{each.name}: {each.input_type} -> {each.output_type}, {streams}"


def enums(scope: str, found: Iterable[descriptor_pb2.EnumDescriptorProto]) -> Iterator[str]:
    for enum in found:
        yield from (f"{scope}.{enum.name}.{value.name} = {value.number}" for value in enum.value)


def test_all_that_the_last_release_promised_is_there() -> None:
    assert promises(released()) - promises(present()) == set()


@pytest.mark.parametrize("change", ["renumber", "remove", "retype"])
def test_a_field_that_is_changed_breaks_the_contract(change: str) -> None:
    files = present()
    fields = next(message for message in files[0].message_type if message.name == "RecentTask").field
    if change == "renumber":
        fields[0].number += 1000
    elif change == "remove":
        del fields[0]
    else:
        fields[0].type = descriptor_pb2.FieldDescriptorProto.TYPE_GROUP
    assert len(promises(released()) - promises(files)) == 1
