"""`dataplane export` and `import` of Parquet files; test_values.py has what they share with JSON Lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack
from tests import commands
from tests.client.cli.reading import run

from dataplane_client import DataPlaneClient, connect
from dataplane_client.codec import WIRE_DTYPES
from dataplane_server.testing import running_server

P, COPY = "p", "copy"


@pytest.fixture
def client() -> Iterator[DataPlaneClient]:
    """Of a server with the partitions p and copy, which take any field."""
    with running_server(memory_bytes=1 << 20) as address, connect(address) as client:
        for name in (P, COPY):
            client.register_partition(name, [], 0, ["train"], open=True)
        yield client


@pytest.fixture
def file(tmp_path: Path) -> str:
    pytest.importorskip("pyarrow")
    return str(tmp_path / "rows.parquet")


def assert_comes_back(client: DataPlaneClient, file: str) -> None:
    """Export p and import it as copy: the partitions then have the same fields, and rows with the same bytes."""
    for command in (["export", P, file], ["import", COPY, file]):
        code, text = run(*command, "-s", client.target)
        assert code == 0, text
    fields, others = (sorted(client.partition(name).fields, key=str) for name in (P, COPY))
    assert fields == others
    meta, other = (client.list_samples(name).meta for name in (P, COPY))
    assert (meta.sample_ids, meta.tags) == (other.sample_ids, other.tags)
    for place, sample_id in enumerate(meta.sample_ids):
        names = client.sample(P, sample_id).fields
        assert client.sample(COPY, sample_id).fields == names
        for name in names:
            rows, copies = (client.read_columns(of.subset([place]), [name], layout="jagged") for of in (meta, other))
            assert bytes_of(rows[name]) == bytes_of(copies[name]), name


def bytes_of(column: object) -> object:
    if not isinstance(column, torch.Tensor):
        return list(column)  # type: ignore[call-overload]
    (row,) = column.unbind()
    return row.dtype, row.shape, row.contiguous().flatten().view(torch.uint8).tolist()


DTYPES = [entry.torch_dtype for entry in WIRE_DTYPES]


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    wide = torch.arange(torch.Size(shape).numel() * dtype.itemsize) % (2 if dtype == torch.bool else 100)
    return wide.to(torch.uint8).view(dtype).reshape(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_element_type_comes_back_exactly(client: DataPlaneClient, file: str) -> None:
    """As scalars and vectors; some rows lack fields."""
    scalars, vectors = ({f"{dtype} {shape}": values(dtype, 3, *shape) for dtype in DTYPES} for shape in ((), (5,)))
    client.put_samples(["a", "b", "c"], P, scalars | vectors)
    client.put_samples(["d"], P, {name: value[:1] for name, value in scalars.items()})
    client.put_samples(["e"], P)
    assert_comes_back(client, file)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_ragged_rows_of_every_element_type_come_back_exactly(client: DataPlaneClient, file: str) -> None:
    """Entries have a shape, and a row has none."""
    sizes = (3, 0, 1)
    client.put_samples(["a", "b", "c"], P, {str(d): [values(d, size, 2, 2) for size in sizes] for d in DTYPES})
    client.put_samples(["d"], P, {str(dtype): [values(dtype, 4, 2, 2)] for dtype in DTYPES})
    client.put_samples(["e"], P)
    assert_comes_back(client, file)


def test_per_token_fields_of_rows_of_one_length_come_back(client: DataPlaneClient, file: str) -> None:
    """They are dense as those of other rows, and the length of a row is that of its values."""
    fields = {"ids": torch.arange(6).reshape(2, 3), "embedding": torch.ones(2, 4)}
    for name in (P, COPY):
        client.register_partition(name, list(fields), 0, ["train"], per_token_fields=["ids"], replace=True)
    client.put_samples(["a", "b"], P, fields, sequence_lengths=[3, 3])
    client.put_samples(["c", "d"], COPY, fields, sequence_lengths=[3, 3])
    for command in (["export", P, file], ["import", COPY, file]):
        code, text = run(*command, "-s", client.target)
        assert code == 0, text
    meta = client.list_samples(COPY).meta
    assert (meta.sample_ids, meta.sequence_lengths) == (["c", "d", "a", "b"], [3] * 4)
    read = client.read_columns(meta, list(fields))
    for name, values in fields.items():
        assert torch.equal(read[name], torch.cat([values, values]))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_empty_rows_keep_their_shape(client: DataPlaneClient, file: str, suffix: str) -> None:
    """Beside others, and alone in their page."""
    client.put_samples(["a", "b"], P, {"boxes": [values(torch.int32, size, 4) for size in (0, 2)]})
    client.put_samples(["c", "d"], P, {"none": [values(torch.int32, 0, 2, 3)] * 2})
    assert_comes_back(client, str(Path(file).with_suffix(f".{suffix}")))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_objects_that_json_holds_come_back_exactly(client: DataPlaneClient, file: str, suffix: str) -> None:
    objects = [{"n": None, "t": True, "i": 1, "f": 1.0, "s": ["\u00e9", []], "d": {}}, 2**63, -0.0, "1", []]
    column = NonTensorStack(*(NonTensorData(data=value) for value in objects))
    rows = {"x": column, "y": torch.arange(5, dtype=torch.bfloat16) / 4, "ids": [torch.arange(n) for n in range(1, 6)]}
    client.put_samples([f"s{row}" for row in range(len(objects))], P, rows, [{"std": 0.5, "version": 1}, *[{}] * 4])
    assert_comes_back(client, str(Path(file).with_suffix(f".{suffix}")))


def test_more_rows_than_a_page_has_come_back(client: DataPlaneClient, file: str) -> None:
    client.put_samples([f"s{row}" for row in range(260)], P, {"x": [torch.arange(row % 7) for row in range(260)]})
    assert_comes_back(client, file)
    import pyarrow.parquet as pq

    assert pq.ParquetFile(file).num_row_groups == 2


def test_other_programs_read_numbers_lists_and_tags(client: DataPlaneClient, file: str) -> None:
    rows = {"ids": [torch.tensor([7, 8])], "reward": torch.tensor([0.5], dtype=torch.bfloat16)}
    client.put_samples(["a"], P, rows, [{"std": 0.25}])
    run("export", P, file, "-s", client.target)
    import pyarrow.parquet as pq

    (row,) = pq.read_table(file).to_pylist()
    assert row == {"sample_id": "a", "tags": [("std", "0.25")], "group": None, "ids": [7, 8], "reward": 0.5}


def test_the_format_may_be_named(client: DataPlaneClient, file: str, tmp_path: Path) -> None:
    client.put_samples(["a"], P, {"x": torch.ones(1)})
    assert run("export", P, file, "--format", "jsonl", "-s", client.target)[0] == 0
    assert Path(file).read_text().startswith('{"sample_id": "a"')
    other = str(tmp_path / "rows")
    assert run("export", P, other, "--format", "parquet", "-s", client.target)[0] == 0
    assert run("import", COPY, other, "--format", "parquet", "-s", client.target) == (0, "1 row imported\n")


@pytest.mark.parametrize(
    ("path", "words"),
    [("-", "a Parquet file cannot be a pipe"), ("{tmp}/x", "is not a file as `dataplane export` writes it")],
)
def test_what_is_no_such_file_is_refused(client: DataPlaneClient, file: str, path: str, words: str) -> None:
    path = path.format(tmp=Path(file).parent)
    if path != "-":
        Path(path).write_text("no parquet")
    code, text = run("import", COPY, path, "--format", "parquet", "-s", client.target)
    assert code != 0
    assert words in text


def test_without_pyarrow_the_extra_is_named(client: DataPlaneClient, tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyarrow'] = None; from dataplane_client.cli import main; main()"
    command = [sys.executable, "-c", program, "export", P, str(tmp_path / "x.parquet"), "-s", client.target]
    done = commands.run(command)
    assert done.returncode == 1
    assert "pip install 'rl-dataplane[parquet]'" in done.stderr
