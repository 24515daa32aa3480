"""What a client of shared memory holds by its handles, at the end of it."""

from __future__ import annotations

import pytest

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.local.handles import Handles


class Holds(Handles[str]):
    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    def _end(self, held: str) -> None:
        self.ended.append(held)


def test_a_client_that_is_gone_holds_nothing_and_gets_no_hold() -> None:
    holds = Holds()
    holds.hold(1, "lease")
    holds.end()
    with pytest.raises(Refusal) as caught:
        holds.hold(2, "room for a put that waited")
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert holds.ended == ["lease", "room for a put that waited"]
