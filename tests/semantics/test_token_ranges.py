"""Reads of a part of the tokens of rows."""

from __future__ import annotations

import pytest
import torch
from tests.semantics.conftest import ON_ONE_WAY
from tests.semantics.token_rows import FIELDS, assert_rows, generated, jagged
from tests.semantics.token_rows import flow as flow

from dataplane_client.client import DataPlaneClient, read_columns
from dataplane_client.errors import DataPlaneError, InvalidArgumentError, UnsupportedTypeError


@pytest.mark.parametrize("layout", ["jagged", "padded"])
def test_two_context_parallel_ranks_that_read_halves_have_the_whole(flow: DataPlaneClient, layout: str) -> None:
    lengths = [3000, 4096, 17, 0]
    whole = generated(lengths)
    ids = ["a", "b", "c", "d"]
    meta = flow.put_samples(ids, "p", {**whole, "reward": torch.arange(4.0)})
    before = flow.partition("p").read_bytes_total
    bounds = [[(0, n // 2), (n // 2, n)] for n in lengths]
    halves = []
    for rank in range(2):
        ranges = [of_row[rank] for of_row in bounds]
        batch = flow.read_columns(meta, FIELDS, token_ranges=ranges, layout=layout)  # type: ignore[arg-type]
        assert batch["reward"].tolist() == [0.0, 1.0, 2.0, 3.0]
        sizes = [end - start for start, end in ranges]
        halves.append({name: [row[:n] for row, n in zip(batch[name].unbind(), sizes, strict=True)] for name in whole})
        if layout == "padded":
            assert batch["experts"].shape == (4, max(sizes), 2, 8)
    for name, rows in whole.items():
        for row, first, second in zip(rows.unbind(), halves[0][name], halves[1][name], strict=True):
            assert torch.equal(torch.cat([first, second]), row)
    assert flow.partition("p").read_bytes_total - before == sum(lengths) * (8 + 4 + 16) + 2 * 4 * 4


@ON_ONE_WAY
def test_one_range_holds_for_all_rows_and_every_verb(flow: DataPlaneClient) -> None:
    whole = generated([9, 5])
    meta = flow.put_samples(["a", "b"], "p", whole)
    middle = {name: jagged([rows[0][4:7], rows[1][4:7]]) for name, rows in whole.items()}
    assert_rows(flow.get_samples(["a", "b"], "p", FIELDS[:3], token_range=(4, 7)), middle)
    assert_rows(flow.get_data(meta, token_range=(4, 7)), middle)
    padded = read_columns(flow, meta, ["tokens"], token_range=(4, 7), pad_value_dict={"tokens": -1})
    assert padded["tokens"].tolist() == [[*whole["tokens"][0][4:7].tolist()], [int(whole["tokens"][1][4]), -1, -1]]
    end = flow.read_columns(meta, ["tokens"], token_range=(4, None), layout="jagged")["tokens"]
    assert [len(row) for row in end.unbind()] == [5, 1]


@ON_ONE_WAY
@pytest.mark.parametrize(
    ("ranges", "kind", "text"),
    [
        ({"token_range": (3, 1)}, InvalidArgumentError, "end of token_range .*3"),
        ({"token_range": (-1, 1)}, InvalidArgumentError, "start of token_range .*-1"),
        ({"token_range": 5}, UnsupportedTypeError, r"token_range must be \(start, end\), got 5"),
        ({"token_range": (0.5, 1)}, UnsupportedTypeError, "start of token_range"),
        ({"token_ranges": [(0, 1)]}, InvalidArgumentError, "token_ranges .*1 .*2"),
        ({"token_ranges": [(0, 1), (2, 1)]}, InvalidArgumentError, "token range of sample 'b'"),
        ({"token_range": (0, 1), "token_ranges": [(0, 1)] * 2}, InvalidArgumentError, "not both"),
    ],
    ids=str,
)
def test_a_range_that_makes_no_sense_is_refused(
    flow: DataPlaneClient, ranges: dict[str, object], kind: type[DataPlaneError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        flow.get_samples(["a", "b"], "p", ["tokens"], **ranges)  # type: ignore[arg-type]
