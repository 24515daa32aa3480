"""Events of the client's logger: one line each, with named fields.

White-box: values of every kind, which no event has.
"""

from __future__ import annotations

import logging

import pytest

from dataplane_client._connect.log import log_event

SHOWN: list[tuple[object, str]] = [
    ("trainer-0", "trainer-0"),
    (17, "17"),
    (None, "None"),
    ("unix:///run/dataplane.sock", "unix:///run/dataplane.sock"),
    ("", '""'),
    ("it expired", '"it expired"'),
    ("a=b", '"a=b"'),
    ('say "no"', '"say \\"no\\""'),
    ("two\nlines", '"two\\nlines"'),
    ("Jürgen", "Jürgen"),
    (OSError("no such file"), '"no such file"'),
]


def test_a_value_is_one_word_of_one_line(caplog: pytest.LogCaptureFixture) -> None:
    for value, _ in SHOWN:
        log_event(logging.WARNING, "session_lost", why=value)
    assert caplog.messages == [f"session_lost why={shown}" for _, shown in SHOWN]


def test_fields_are_attributes_of_the_record_in_their_own_types(caplog: pytest.LogCaptureFixture) -> None:
    log_event(logging.WARNING, "session_lost", server="s", pid=17)
    (record,) = caplog.records
    assert vars(record).items() >= {"event": "session_lost", "server": "s", "pid": 17}.items()
    assert (record.name, record.levelname) == ("dataplane_client", "WARNING")
    assert record.funcName == "test_fields_are_attributes_of_the_record_in_their_own_types"
