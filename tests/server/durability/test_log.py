"""The log on a real file system: what a reader finds after a writer has ended, is killed, or goes on writing."""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path, PosixPath
from typing import IO, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane_server.durability.frames import HEAD, LARGEST, find_frame, frame_of, payloads_of
from dataplane_server.durability.log_reader import (
    MAGIC,
    LogDamagedError,
    LogFormatError,
    LogReader,
    RecordMissingError,
    remove_before,
    segment_path,
    segments,
)
from dataplane_server.durability.log_writer import LogWriter

FORMAT_PAGE = Path(__file__).resolve().parents[3] / "docs" / "format.md"


def write(folder: Path, payloads: Sequence[bytes], *, first: int = 0, segment_bytes: int = 4096) -> None:
    with contextlib.closing(LogWriter(folder, first, {}, segment_bytes=segment_bytes)) as writer:
        for payload in payloads:
            writer.append(payload)
        assert writer.next_record == first + len(payloads)


def read_all(reader: LogReader) -> tuple[list[bytes], int | Exception]:
    """All records that can be read, and how the log ends."""
    records, first = list[bytes](), reader.next_record
    try:
        while batch := reader.read():
            records += batch
        return records, reader.ending()
    except (LogDamagedError, LogFormatError) as error:
        return records, error
    finally:
        assert reader.next_record == first + len(records)


def read(folder: Path, first: int = 0) -> list[bytes]:
    """The records of a log that ends in order."""
    records, ending = read_all(LogReader(folder, first))
    assert ending == 0
    return records


def payload_of(record: int) -> bytes:
    """Of 6 to 20000 bytes, so that some lie on several pages."""
    return b"<%d>" % record + bytes([record % 256]) * (record * 7919 % 20000 if record % 8 == 0 else record % 150)


def numbered(count: int) -> list[bytes]:
    return [payload_of(record) for record in range(count)]


PRELUDE = f"""
import errno, os, resource, sys
from pathlib import Path
from dataplane_server.durability.log_reader import LogReader, segments
from dataplane_server.durability.log_writer import LogWriter
folder = Path(sys.argv[1])
{inspect.getsource(payload_of)}
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


def program(code: str, folder: Path) -> subprocess.Popen[str]:
    """A process that runs the code. It may append to the folder, and say lines."""
    command = [sys.executable, "-c", PRELUDE + code, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said_by(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


class Small:
    """A log of 3 full segments with 4 records each, all of one size. head: bytes of the header with the magic."""

    payloads = tuple(b"%020d" % number for number in range(12))
    frame = HEAD.size + 20
    head = len(MAGIC) + len(frame_of(b"\x82\xa6format\x01\xa5first\x00"))

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = [segment_path(folder, number) for number in (0, 4, 8)]
        write(folder, self.payloads, segment_bytes=self.head + 4 * self.frame)
        assert [path for _, path in segments(folder)] == self.paths


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.lists(st.one_of(st.integers(1, 40), st.integers(1, 3000)), max_size=12), min_size=1, max_size=4),
    segment_bytes=st.integers(1, 4000),
    skipped=st.integers(0, 50),
    most=st.integers(1, 5),
)
def test_records_come_back_over_all_sizes_segments_and_restarts(
    runs: list[list[int]], segment_bytes: int, skipped: int, most: int
) -> None:
    payloads = [random.randbytes(size) for run in runs for size in run]
    with tempfile.TemporaryDirectory() as name:
        folder, first = Path(name), 0
        for run in runs:
            write(folder, payloads[first : first + len(run)], first=first, segment_bytes=segment_bytes)
            first += len(run)
        skipped = min(skipped, first)
        assert read(folder, skipped) == payloads[skipped:]
        reader = LogReader(folder, 0)
        batches = list(iter(lambda: reader.read(most), []))
        assert all(len(batch) <= most for batch in batches)
        assert [record for batch in batches for record in batch] == payloads


def test_every_segment_tells_what_the_caller_gives_and_where_it_begins(tmp_path: Path) -> None:
    with contextlib.closing(LogWriter(tmp_path, 0, {"version": "1.2"}, segment_bytes=1)) as writer:
        writer.append(b"a")
    for first in (0, 1):
        reader = LogReader(tmp_path, first)
        assert (reader.header, reader.next_record) == ({"format": 1, "first": 0, "version": "1.2"}, first)


def test_the_space_of_a_segment_is_allocated_when_it_begins_and_cut_when_it_ends(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 0, {}, segment_bytes=1 << 20)
    path = segment_path(tmp_path, 0)
    assert path.stat().st_blocks * 512 >= path.stat().st_size == 1 << 20
    writer.append(b"abc")
    writer.append(bytes(1 << 20))
    writer.close()
    assert path.read_bytes().endswith(frame_of(b"abc"))
    with pytest.raises(OSError, match=f"cannot allocate .*{tmp_path}"):
        LogWriter(tmp_path, 9, {}, segment_bytes=1 << 60)


def test_the_bytes_are_those_of_the_format_page(tmp_path: Path) -> None:
    write(tmp_path, [b"abc"], first=42)
    [(_, path)] = segments(tmp_path)
    page = FORMAT_PAGE.read_text()
    [example] = re.findall(r"^```hex\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    assert path.name in page
    assert path.read_bytes() == bytes.fromhex("".join(line.partition("|")[0] for line in example.splitlines()))


@pytest.mark.parametrize("size", [0, LARGEST + 1], ids=["empty", "too large"])
def test_a_payload_without_a_frame_is_refused_and_others_go_on(tmp_path: Path, size: int) -> None:
    with contextlib.closing(LogWriter(tmp_path, 0, {})) as writer:
        with pytest.raises(ValueError, match=f"{size} bytes"):
            writer.append(bytes(size))
        writer.append(b"a")
    assert read(tmp_path) == [b"a"]


def test_a_closed_writer_refuses(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 0, {})
    writer.close()
    writer.close()
    with pytest.raises(OSError, match="closed"):
        writer.append(b"a")


@pytest.mark.parametrize(("first", "words"), [(0, "has records"), (5, "after record 5"), (8, "has records")])
def test_a_writer_replaces_no_records(small: Small, first: int, words: str) -> None:
    with pytest.raises(FileExistsError, match=words):
        LogWriter(small.folder, first, {})
    assert read(small.folder) == [*small.payloads]
    os.truncate(small.paths[2], small.head + 5)
    with pytest.raises(FileExistsError, match="a torn one" if first == 8 else words):
        LogWriter(small.folder, first, {})


def test_a_segment_without_records_is_replaced_also_under_a_reader(tmp_path: Path) -> None:
    LogWriter(tmp_path, 0, {"server": "first"}).close()
    reader = LogReader(tmp_path, 0)
    assert (reader.read(), reader.header["server"]) == ([], "first")
    with contextlib.closing(LogWriter(tmp_path, 0, {"server": "the second"})) as writer:
        assert reader.read() == []
        writer.append(b"a")
        assert (reader.read(), reader.header["server"]) == ([b"a"], "the second")


def test_a_torn_end_is_told_and_cut_at_every_byte(small: Small) -> None:
    path, data = small.paths[2], small.paths[2].read_bytes()
    for length in range(small.head, len(data)):
        path.write_bytes(data[:length])
        whole, left = divmod(length - small.head, small.frame)
        complete = [*small.payloads[: 8 + whole]]
        reader = LogReader(small.folder, 0)
        assert read_all(reader) == (complete, len(data[length - left : length].rstrip(b"\0")))
        reader.cut()
        write(small.folder, [b"new"], first=8 + whole)
        assert read(small.folder) == [*complete, b"new"]
        segments(small.folder)[-1][1].unlink()


def test_a_torn_record_before_unused_space_is_told_and_cut(tmp_path: Path) -> None:
    LogWriter(tmp_path, 0, {}).append(b"a")
    path, torn = segment_path(tmp_path, 0), frame_of(bytes([7]) * 9000)[:4096]
    path.write_bytes(path.read_bytes().replace(frame_of(b"a") + bytes(4096), frame_of(b"a") + torn))
    reader = LogReader(tmp_path, 0)
    assert read_all(reader) == ([b"a"], 4096)
    reader.cut()
    assert read(tmp_path) == [b"a"]


def test_the_end_is_asked_for_only_at_the_end(small: Small) -> None:
    reader = LogReader(small.folder, 9)
    for ask in (reader.ending, reader.cut):
        with pytest.raises(ValueError, match="record 9"):
            ask()
    assert read(small.folder) == [*small.payloads]


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_flipped_bit_is_damage_unless_it_is_in_the_last_record(small: Small, segment: int) -> None:
    path, data = small.paths[segment], small.paths[segment].read_bytes()
    for byte in range(small.head, len(data)):
        path.write_bytes(flipped(data, byte))
        place = (byte - small.head) // small.frame
        record = 4 * segment + place
        records, ending = read_all(reader := LogReader(small.folder, 0))
        assert records == [*small.payloads[:record]]
        if record == 11:
            assert ending == small.frame
            continue
        assert isinstance(ending, LogDamagedError)
        assert (ending.path, ending.byte, ending.record) == (path, small.head + place * small.frame, record)
        assert f"Records below {record} are readable; record {record} is lost" in str(ending)
        with pytest.raises(LogDamagedError):
            reader.cut() if segment == 2 else reader.read()
        assert path.read_bytes() == flipped(data, byte)


@pytest.mark.parametrize("segment", [1, 2])
def test_a_segment_with_a_flipped_bit_or_a_cut_in_its_header_is_refused(small: Small, segment: int) -> None:
    path, data = small.paths[segment], small.paths[segment].read_bytes()
    for byte in range(small.head):
        for content in (flipped(data, byte), data[:byte]):
            path.write_bytes(content)
            records, ending = read_all(LogReader(small.folder, 0))
            assert records == [*small.payloads[: 4 * segment]]
            assert isinstance(ending, LogFormatError)


def flipped(data: bytes, byte: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 1 << byte % 8]) + data[byte + 1 :]


def replaced(segment: int, change: Callable[[bytes], bytes]) -> Callable[[Small], object]:
    return lambda small: small.paths[segment].write_bytes(change(small.paths[segment].read_bytes()))


def without_its_first_record(data: bytes) -> bytes:
    return data[: Small.head] + bytes(Small.frame) + data[Small.head + Small.frame :]


@pytest.mark.parametrize(
    ("harm", "record", "words"),
    [
        (lambda small: small.paths[1].unlink(), 4, "next segment begins with record 8 instead of 4"),
        (replaced(0, lambda data: data[: -Small.frame]), 3, "next segment begins with record 4 instead of 3"),
        (replaced(0, lambda data: data + frame_of(b"again")), 5, "next segment begins with record 4 instead of 5"),
        (replaced(0, without_its_first_record), 0, "a later segment exists"),
        (replaced(2, without_its_first_record), 8, f"a complete one follows at byte {Small.head + Small.frame}"),
    ],
    ids=["a segment is gone", "a record is gone", "a record too many", "zeros", "zeros in the last segment"],
)
def test_a_gap_is_damage(small: Small, harm: Callable[[Small], object], record: int, words: str) -> None:
    harm(small)
    _, ending = read_all(reader := LogReader(small.folder, 0))
    assert isinstance(ending, LogDamagedError)
    assert words in str(ending)
    assert (ending.record, reader.next_record) == (record, record)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with b''"),
        (b"RLDPCKP\n" + frame_of(b"\x80"), "begins with b'RLDPCKP"),
        (MAGIC + frame_of(b"\x82\xa6format\x02\xa5first\x00"), "a segment of format 2"),
        (MAGIC + frame_of(b"\x82\xa6format\x01\xa5first\x07"), "begins with record 7 by its header"),
        (MAGIC + frame_of(b"\x81\xa5first\x00"), "has no format"),
        (MAGIC + frame_of(b"\x93\x01\x02\x03"), "has no format"),
        (MAGIC + frame_of(b"\xc1"), "has no format"),
        (MAGIC + frame_of(b"\x82\xa6form"), "has no format"),
        (MAGIC + bytes(4000), "header is damaged"),
    ],
)
def test_a_file_of_another_kind_or_format_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    segment_path(tmp_path, 0).write_bytes(content)
    for refused in (lambda: LogReader(tmp_path, 0), lambda: LogWriter(tmp_path, 0, {})):
        with pytest.raises(LogFormatError, match=f"{words}.*format 1"):
            refused()


def test_a_record_that_the_log_does_not_hold_is_named(small: Small) -> None:
    assert LogReader(small.folder, 12).read() == []
    with pytest.raises(RecordMissingError, match=r"record 13.* 12"):
        LogReader(small.folder, 13)
    reader = LogReader(small.folder, 2)
    remove_before(small.folder, 4)
    for missed in (reader.read, lambda: LogReader(small.folder, 3)):
        with pytest.raises(RecordMissingError, match=r"record [23]"):
            missed()


@pytest.mark.parametrize(("record", "left"), [(3, [0, 4, 8]), (4, [4, 8]), (7, [4, 8]), (8, [8]), (99, [8])])
def test_segments_go_when_all_their_records_may_and_the_last_stays(small: Small, record: int, left: list[int]) -> None:
    (small.folder / "log-1").touch()
    (small.folder / "log.new").touch()
    removed = remove_before(small.folder, record)
    assert [number for number, _ in segments(small.folder)] == left
    assert removed == small.paths[: 3 - len(left)]
    assert read(small.folder, left[0]) == [*small.payloads[left[0] :]]


def first_frame(data: bytes) -> int | None:
    return next((begin for begin in range(len(data)) if payloads_of(data[begin:], 1)[0]), None)


PIECES = st.one_of(
    st.binary(max_size=30),
    st.binary(min_size=1, max_size=30).map(frame_of),
    st.integers(0, 300).map(bytes),
    st.integers(1, 300).map(lambda zeros: frame_of(b"x" + bytes(zeros))),
    st.lists(st.integers(0, 40), max_size=8).map(lambda sizes: b"".join(size.to_bytes(8, "little") for size in sizes)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=6).map(b"".join), st.integers(0, 40))
def test_a_frame_is_found_among_any_bytes(data: bytes, cut: int) -> None:
    data = data[: len(data) - cut]
    assert find_frame(data) == first_frame(data)


@pytest.mark.parametrize(("count", "segment_bytes"), [(400, 1), (4000, 100_000)])
def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path, count: int, segment_bytes: int) -> None:
    code = f"""
writer = LogWriter(folder, 0, {{}}, segment_bytes={segment_bytes})
for record in range({count}):
    if record == 200:
        say("so far")
        sys.stdin.readline()
    writer.append(payload_of(record))
"""
    with program(code, tmp_path) as process:
        assert process.stdin is not None
        said_by(process).readline()
        reader = LogReader(tmp_path, 0)
        records = [record for batch in iter(reader.read, []) for record in batch]
        assert records == numbered(200)
        process.stdin.write("go on\n")
        process.stdin.flush()
        while len(records) < count:
            records += reader.read(100)
            remove_before(tmp_path, reader.next_record)
            assert process.poll() in (None, 0)
    assert records == numbered(count)


class Watched(PosixPath):
    """A folder in which something happens once, before it is listed."""

    happens: ClassVar[list[Callable[[], None]]] = []

    def iterdir(self) -> Generator[Watched, None, None]:
        while self.happens:
            self.happens.pop(0)()
        yield from super().iterdir()


def test_a_record_and_a_segment_that_come_between_two_looks_are_read(tmp_path: Path) -> None:
    with contextlib.closing(LogWriter(tmp_path, 0, {}, segment_bytes=100)) as writer:
        reader = LogReader(Watched(tmp_path), 0)
        Watched.happens += [lambda: writer.append(b"a"), lambda: writer.append(bytes(80))]
        assert (reader.read(), reader.read(), len(segments(tmp_path))) == ([b"a"], [bytes(80)], 2)


@pytest.mark.parametrize(
    ("limit", "segment_bytes"),
    [(30_000, 100_000), (28_672, 100_000), (60_000, 60_001), (5_000, 1_000)],
    ids=["within a page", "between pages", "the space of a segment", "the space of a large record"],
)
def test_a_writer_whose_write_fails_refuses_and_the_log_ends_in_order(
    tmp_path: Path, limit: int, segment_bytes: int
) -> None:
    code = f"""
writer = LogWriter(folder, 0, {{}}, segment_bytes={segment_bytes})
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
for attempt in range(200):
    try:
        writer.append(payload_of(writer.next_record))
    except OSError as error:
        say(errno.errorcode[error.errno], writer.next_record)
os._exit(0)
"""
    with program(code, tmp_path) as process:
        lines = said_by(process).read().splitlines()
    count = int(lines[0].split()[1])
    assert 0 < count < 200
    assert lines == [f"EFBIG {count}", *[f"EBADF {count}"] * (199 - count)]
    assert read(tmp_path) == numbered(count)
    assert sorted(tmp_path.iterdir()) == [path for number, path in segments(tmp_path) if number < count]
    write(tmp_path, [b"new"], first=count)
    assert read(tmp_path, count) == [b"new"]
