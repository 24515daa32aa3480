"""`dataplane describe`: one partition, as tables and as JSON."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.client.cli.reading import read, run, run_json
from tests.waiting import eventually

from dataplane_client import DrawBand, FlowPolicy, TaskPolicy, connect


def test_a_partition_is_shown_with_its_fields_tasks_and_waits(address: str) -> None:
    code, text = run("describe", "train", "-s", address)
    assert code == 0
    assert read(text, r"\b\d+%") == [
        "train",
        "  holds  2 rows, 64 B, oldest ~",
        "  put  2 rows, 64 B written in the last ~",
        "  read  0 rows, 0 B in the last ~",
        "  removed  0 rows in the last ~: none",
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
        "task  claims waiting  longest wait  weight versions behind  may be behind  too stale",
        "prev_lp  0  -  1  -  0",
        "train  0  -  0  -  0",
        "",
        "in the last ~:",
        "",
        "task  claims  rows delivered  rows consumed  deliveries ended",
        "prev_lp  0  0  0  none",
        "train  1  1  0  none",
        "",
        "task  time  serving  waiting  waiting for consumers  idle",
        "prev_lp  ~  ~  ~  ~  ~",
        "train  ~  ~  ~  ~  ~",
    ]


def test_the_modes_of_a_partition_are_on_one_line(address: str) -> None:
    assert not any(line.startswith("  mode") for line in read(run("describe", "train", "-s", address)[1]))
    with connect(address) as client:
        client.register_partition("odd", [], 0, ["train"], open=True, clear_when_consumed=True)
        client.close_partition("odd")
    assert "  mode  open, closed, clears consumed rows" in read(run("describe", "odd", "-s", address)[1])
    assert run_json("describe", "odd", "-s", address)["closed"] is True


def test_removed_rows_and_ended_deliveries_are_counted_by_cause(troubled: str) -> None:
    lines = read(run("describe", "p", "-s", troubled)[1])
    assert "  put  3 rows, 48 B written in the last ~" in lines
    assert "  removed  1 row in the last ~: consumed 1" in lines
    assert "  limit  2 deliveries of a row" in lines
    assert "train  1  1  0  0  0  1  ~" in lines
    assert "train  3  3  1  committed 1, released 2" in lines
    described = run_json("describe", "p", "-s", troubled)
    assert (described["removed_rows"]["consumed"], described["oldest_row_age_s"] >= 0) == (1, True)
    assert described["tasks"][0]["ended_deliveries"] == {"committed": 1, "released": 2}


def test_what_bounds_new_rows_and_who_waits_is_told_within_80_columns(troubled: str) -> None:
    flow = FlowPolicy(max_rows=2, max_bytes=1 << 20, when_full="evict", evict_where="x > 1", band=DrawBand(2, -4, 8.5))
    with connect(troubled) as client, ThreadPoolExecutor() as threads:
        client.set_policies("p", {"train": TaskPolicy(3, rows_per_version=64)}, flow=flow)
        put = threads.submit(client.put_samples, ["d"], "p")
        eventually(lambda: client.partition("p").waiting_calls)
        text, status = (run(*command, "-s", troubled, COLUMNS="80")[1] for command in (["describe", "p"], ["status"]))
        client.set_policies("p", flow=FlowPolicy())
        put.result(200)
    assert max(map(len, text.splitlines())) <= 80
    shown = " ".join(text.split())
    assert "new rows at most 2 rows, 1.0 MiB, else evict oldest first; train takes 64 rows of each" in shown
    assert "weight version; 2 draws a row, surplus -4 to 8.5" in shown
    assert "waiting 1 call: partition 'p' has no room for 1 new row: 1 row is done with by every task" in shown
    assert "  waiting  0 claims, 0 puts, 1 call for room in a partition" in read(status)
    assert "p  2 rows, 32 B, oldest ~, 1 call for room" in read(status)
