"""Streams of frames, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane_server.cluster.node.frame_buffer import FrameBuffer
from dataplane_server.cluster.node.relay import frame_of
from rl_dataplane.v1.local_frames import HEAD

frames = st.lists(st.builds(frame_of, st.integers(0, 50), st.binary(max_size=40)), max_size=6)


@given(sent=frames, sizes=st.lists(st.integers(1, 60), min_size=1))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sent: list[bytes], sizes: list[int]) -> None:
    buffer, got, stream = FrameBuffer(), [], b"".join(sent)
    while stream:
        size = sizes[len(stream) % len(sizes)]
        buffer.add(stream[:size])
        stream = stream[size:]
        while (frame := buffer.take(40)) is not None:
            got.append(frame)
    assert got == sent
    assert len(buffer) == 0


def test_a_frame_that_is_too_large_is_refused_by_its_head() -> None:
    buffer = FrameBuffer()
    buffer.add(HEAD.pack(41, 0))
    with pytest.raises(ValueError, match="has 41 bytes; the limit is 40"):
        buffer.take(40)
