"""Values on the drawn dashboard read as they do in Grafana."""

from __future__ import annotations

from scripts.value_text import round_size, value_text

TEXTS = [
    (0.0, "s", "0 s"),
    (0.00025, "s", "250 µs"),
    (0.0125, "s", "12.5 ms"),
    (90.0, "s", "1.5 min"),
    (1536.0, "bytes", "1.5 KiB"),
    (1.5e6, "Bps", "1.5 MB/s"),
    (0.625, "percentunit", "62.5%"),
    (1234.0, "short", "1.23k"),
    (180.0, "rowsps", "180 rows/s"),
    (0.5, "suffix: cores", "0.5 cores"),
    (1.0, "bool_yes_no", "yes"),
]


def test_a_value_is_written_with_its_unit_to_three_digits() -> None:
    assert [value_text(value, unit) for value, unit, _ in TEXTS] == [text for *_, text in TEXTS]


def test_an_axis_is_divided_by_what_is_short_to_write() -> None:
    sizes = [round_size(5e6, "bytes"), round_size(200.0, "s"), round_size(0.02, "s")]
    assert sizes == [2**20, 60, 1e-3]
