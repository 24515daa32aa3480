"""`dataplane describe`: one partition, as tables and as JSON."""

from __future__ import annotations

from tests.client.cli.reading import read, run, run_json

from dataplane_client import connect


def test_a_partition_is_shown_with_its_fields_tasks_and_waits(address: str) -> None:
    code, text = run("describe", "train", "-s", address)
    assert code == 0
    assert read(text, r"\b\d+%") == [
        "train",
        "  holds  2 rows, 64 B, oldest ~",
        "  put  2 rows, 64 B written",
        "  read  0 rows, 0 B",
        "  removed  0 rows: none",
        "  weights  version 18",
        "",
        "field  kind  element type  row shape  per token  rows  size",
        "input_ids  jagged  int64  (*)  yes  2  40 B",
        "input_lengths  dense  int64  ()  2  16 B",
        "sample_mask  dense  float32  ()  2  8 B",
        "prev_logprobs  0  0 B",
        "",
        "task  untaken  ready  claimed  consumed  delayed  dead  oldest untaken",
        "prev_lp  2  -  0  0  0  0  ~",
        "train  1  1  1  0  0  0  ~",
        "",
        "task  claims  rows delivered  rows consumed  deliveries ended",
        "prev_lp  0  0  0  none",
        "train  1  1  0  none",
        "",
        "task  claims waiting  longest wait  weight versions behind  may be behind  too stale",
        "prev_lp  0  -  1  -  0",
        "train  0  -  0  -  0",
        "",
        "task  time  serving  waiting for producers  waiting for consumers  waiting by policy  idle",
        "prev_lp  ~  ~  ~  ~  ~  ~",
        "train  ~  ~  ~  ~  ~  ~",
    ]


def test_a_partition_without_tasks_has_only_the_table_of_fields(address: str) -> None:
    text = run("describe", "val", "-s", address)[1]
    assert read(text)[-2:] == ["field  kind  element type  row shape  per token  rows  size", "input_ids  0  0 B"]


def test_the_modes_of_a_partition_are_on_one_line(address: str) -> None:
    assert not any(line.startswith("  mode") for line in read(run("describe", "train", "-s", address)[1]))
    with connect(address) as client:
        client.register_partition("odd", [], 0, ["train"], open=True, clear_when_consumed=True)
        client.close_partition("odd")
    assert "  mode  open, closed, clears consumed rows" in read(run("describe", "odd", "-s", address)[1])
    assert run_json("describe", "odd", "-s", address)["closed"] is True


def test_removed_rows_and_ended_deliveries_are_counted_by_cause(troubled: str) -> None:
    lines = read(run("describe", "p", "-s", troubled)[1])
    assert "  put  3 rows, 48 B written" in lines
    assert "  removed  1 row: consumed 1" in lines
    assert "  limit  2 deliveries of a row" in lines
    assert "train  1  1  0  0  0  1  ~" in lines
    assert "train  3  3  1  committed 1, released 2" in lines


def test_json_output_has_the_same_figures(troubled: str) -> None:
    described = run_json("describe", "p", "-s", troubled)
    assert described["removed_rows"]["consumed"] == 1
    assert described["tasks"][0]["ended_deliveries"] == {"committed": 1, "released": 2}
    assert described["oldest_row_age_s"] >= 0


def test_an_unknown_partition_exits_with_1_and_its_name(address: str) -> None:
    code, text = run("describe", "tarin", "-s", address)
    assert code == 1
    assert "there is no partition 'tarin'" in text
