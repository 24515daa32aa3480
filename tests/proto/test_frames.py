"""Frames, beside what the generated classes make of the same bytes."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.frames import frame_prefix, parse_frame

Message = type[pb.PutSamplesRequest] | type[pb.CommitClaimRequest] | type[pb.ReadColumnsResponse]
MESSAGES: list[Message] = [pb.PutSamplesRequest, pb.CommitClaimRequest, pb.ReadColumnsResponse]

names = st.text(max_size=8)
columns = st.lists(st.builds(pb.Column, name=names, row_lengths=st.binary(max_size=200)), max_size=3)
headers = st.one_of(
    st.builds(pb.PutSamplesHeader, request_id=names, sample_ids=st.lists(names, max_size=40), columns=columns),
    st.builds(pb.CommitClaimHeader, claim_id=names, columns=columns),
    st.builds(pb.ReadColumnsHeader, columns=columns, sequence_lengths=st.binary(max_size=40)),
)
offsets = st.one_of(st.just(0), st.integers(0, 300), st.integers(0, (1 << 64) - 1))
chunks = st.builds(pb.Chunk, offset_bytes=offsets, data=st.binary(max_size=300))


def read(message: bytes, kind: Message) -> tuple[bytes | None, int, bytes | None] | None:
    """Header, offset and values by the generated classes; None when they refuse."""
    try:
        frame = kind.FromString(message)
    except DecodeError:
        return None
    header = frame.header.SerializeToString(deterministic=True) if frame.HasField("header") else None
    return header, frame.chunk.offset_bytes, frame.chunk.data if frame.HasField("chunk") else None


def parsed(message: bytes, kind: Message) -> tuple[bytes | None, int, bytes | None] | None:
    """The same by our hands; the header goes through its own class, as at both ends of the wire."""
    try:
        frame = parse_frame(message)
        header = None if frame.header is None else type(kind().header).FromString(frame.header)
    except (ValueError, DecodeError):
        return None
    serialized = None if header is None else header.SerializeToString(deterministic=True)
    return serialized, frame.offset, None if frame.chunk is None else bytes(frame.chunk)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(deadline=None)
@given(data=st.data())
def test_what_the_generated_classes_write_is_read_as_they_read_it(kind: Message, data: st.DataObject) -> None:
    header = data.draw(st.none() | headers.filter(lambda header: isinstance(header, type(kind().header))))
    message = kind(header=header, chunk=data.draw(st.none() | chunks)).SerializeToString()  # type: ignore[arg-type]
    assert parsed(message, kind) == read(message, kind)


@settings(deadline=None)
@given(st.none() | headers, offsets, st.binary(max_size=300))
@example(None, 0, b"")
@example(pb.PutSamplesHeader(), 0, b"x" * 127)
@example(pb.CommitClaimHeader(), 1 << 63, b"x" * 128)
@example(pb.ReadColumnsHeader(), 127, b"x" * 70_000)
def test_a_frame_is_written_as_the_generated_classes_write_it(header: object, offset: int, values: bytes) -> None:
    kind = next((kind for kind in MESSAGES if type(kind().header) is type(header)), pb.PutSamplesRequest)
    message = kind(header=header, chunk=pb.Chunk(offset_bytes=offset, data=values))  # type: ignore[arg-type]
    head = None if header is None else header.SerializeToString()  # type: ignore[attr-defined]
    assert frame_prefix(head, offset, len(values)) + values == message.SerializeToString()


# Pieces of encodings: fields that we know and others, each as it should be, cut off, too long, or with another type.
varints = st.one_of(
    st.integers(0, 5).map(lambda value: bytes([value])),
    st.integers(0, 127).map(lambda value: bytes([value | 0x80, 0x00])),
    st.integers(1, 12).map(lambda size: b"\xff" * (size - 1) + b"\x01"),
    st.integers(1, 12).map(lambda size: b"\x80" * (size - 1) + b"\x00"),
)
tags = st.sampled_from([b"\x0a", b"\x12", b"\x1a", b"\x08", b"\x10", b"\x09", b"\x0d", b"\x0b", b"\x0c", b"\x8a\x00"])


def field(inside: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    delimited = st.builds(
        lambda tag, data: tag + bytes([len(data)]) + data, tags, inside.filter(lambda d: len(d) < 128)
    )
    return st.one_of(delimited, st.builds(bytes.__add__, tags, varints), st.binary(max_size=4))


encodings = st.recursive(
    st.binary(max_size=4), lambda inside: st.lists(field(inside), max_size=4).map(b"".join), max_leaves=12
)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=400)
@given(encodings)
@example(b"\x12\x03\x12\x01a\x0a\x00")
@example(b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x00")
@example(b"\x12\x02\x08\x81")
def test_any_bytes_are_read_as_the_generated_classes_read_them_or_refused(kind: Message, message: bytes) -> None:
    assert parsed(message, kind) == read(message, kind)


def test_the_values_of_a_frame_are_a_read_only_view_of_the_message() -> None:
    message = frame_prefix(b"h", 5, 1000) + bytes(1000)
    chunk = parse_frame(message).chunk
    assert chunk is not None
    assert chunk.obj is message
    assert chunk.readonly


FAULTS_OF_MESSAGES = """
import resource
from rl_dataplane.v1.frames import keep_message_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        two = [b"x" * (2 << 20), b"y" * (2 << 20)]
        two.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_message_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_memory_of_messages_is_used_again_instead_of_taken_anew() -> None:
    command = [sys.executable, "-c", FAULTS_OF_MESSAGES]
    before, after = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert int(after) * 10 <= int(before)
