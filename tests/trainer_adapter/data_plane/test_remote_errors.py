"""Errors are sent to other ranks as data and raised there with their own type if it is known."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from dataplane_client import errors
from trainer_adapter._collective_message import UnsupportedValue
from trainer_adapter._remote_errors import decode_error, encode_error

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DataPlaneError)]


def sent_and_decoded(error: BaseException) -> Exception:
    encoded: list[Any] = msgpack.unpackb(msgpack.packb(encode_error(error)))
    return decode_error(encoded, 3)


def test_an_error_of_the_data_plane_keeps_its_class_and_what_it_says() -> None:
    assert len(KINDS) > 10
    for kind in KINDS:
        error = sent_and_decoded(kind("no room", reason="FULL", details={"field": "x"}, retry_after_s=0.5))
        assert type(error) is kind
        assert isinstance(error, errors.DataPlaneError)
        assert str(error) == "rank 3: no room"
        assert (error.reason, error.details, error.retry_after_s) == ("FULL", {"field": "x"}, 0.5)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (UnsupportedValue("value 'x': type set"), UnsupportedValue, "rank 3: value 'x': type set"),
        (KeyError("x"), RuntimeError, "rank 3 failed: KeyError: 'x'"),
        (KeyboardInterrupt(), RuntimeError, "rank 3 failed: KeyboardInterrupt: "),
        (OSError("\ud800"), RuntimeError, "rank 3 failed: OSError: ?"),
        (errors.NotFoundError("\ud800"), errors.NotFoundError, "rank 3: ?"),
    ],
)
def test_any_other_error_is_a_runtime_error_with_its_text(
    error: BaseException, kind: type[Exception], text: str
) -> None:
    got = sent_and_decoded(error)
    assert type(got) is kind
    assert str(got) == text
