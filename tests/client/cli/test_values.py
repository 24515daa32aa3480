"""`dataplane peek`, `tail`, `export`, `import`, `set-version` and `drop`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack
from tests import commands
from tests.client.cli.reading import DATAPLANE, run, run_json
from tests.tensors import objects

from dataplane_client import DataPlaneClient, connect
from dataplane_server.testing import running_server

NEEDS_PYARROW = pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs the extra parquet")


@pytest.fixture
def client() -> Iterator[DataPlaneClient]:
    """Partition p: rows a and b with all fields, c without texts."""
    with running_server(memory_bytes=1 << 20) as address, connect(address) as client:
        client.register_partition("p", ["input_ids", "logprobs", "texts"], 0, ["train"])
        rows = {
            "input_ids": [torch.arange(40), torch.tensor([7, 8])],
            "logprobs": torch.tensor([0.5, -1.25], dtype=torch.bfloat16),
            "texts": [{"prompt": "one"}, {"prompt": "two"}],
        }
        client.put_samples(["a", "b"], "p", rows, [{"std": 0.5, "weight_version": 1}, {"weight_version": 2}])
        rest = {"input_ids": [torch.tensor([1])], "logprobs": torch.zeros(1, dtype=torch.bfloat16)}
        client.put_samples(["c"], "p", rest)
        yield client


def test_peek_shows_rows_with_their_values_shortened(client: DataPlaneClient) -> None:
    code, text = run("peek", "p", "-s", client.target)
    assert code == 0
    assert text.splitlines()[:5] == [
        "a  std=0.5, weight_version=1",
        "  input_ids  int64[40]  0 1 2 3 4 5 6 7 ... 32 33 34 35 36 37 38 39",
        "  logprobs  bfloat16[]  0.5",
        "  texts  {'prompt': 'one'}",
        "",
    ]
    assert "texts" not in text[text.index("\nc\n") :]


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["b"], ["b"]),
        (["-n", "2"], ["a", "b"]),
        (["--where", "weight_version == 2"], ["b"]),
        (["--where", "weight_version == 9"], []),
    ],
)
def test_peek_shows_the_rows_that_are_asked_for(client: DataPlaneClient, flags: list[str], shown: list[str]) -> None:
    assert [row["sample_id"] for row in run_json("peek", "p", *flags, "-s", client.target)] == shown


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["peek", "p", "--field", "logprob"], 1, "partition 'p' has no field 'logprob'"),
        (["peek", "p", "a", "--where", "std > 1"], 2, "name samples, or choose them by --where"),
        (["tail", "p", "--where", "std > high"], 2, "--where: filter 'std > high', column 7"),
        (["export", "p", "FILE", "--field", "logprob"], 1, "partition 'p' has no field 'logprob'"),
        (["export", "p", "FILE", "--where", "std > high"], 2, "--where: filter 'std > high', column 7"),
        (["export", "q", "FILE"], 1, "there is no partition 'q'"),
        (["export", "p", "rows.jsonl.gz"], 2, "rows.jsonl.gz: files are not compressed"),
        (["set-version", "p", str(10**20)], 2, "is not in the range"),
        (["export", "p", "FILE", "-s", "nowhere"], 2, "'nowhere' is not an address"),
    ],
)
def test_what_is_mistyped_is_named_and_touches_no_file(
    client: DataPlaneClient, tmp_path: Path, command: list[str], code: int, said: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("as it was")
    ended, text = run("-s", client.target, *(str(file) if word == "FILE" else word for word in command))
    assert (ended, said in text, file.read_text()) == (code, True, "as it was"), text


def test_peek_shows_only_chosen_fields(client: DataPlaneClient) -> None:
    (row,) = run_json("peek", "p", "b", "--field", "input_ids", "-s", client.target)
    assert row["fields"] == {"input_ids": "int64[2]  7 8"}


def test_peek_decodes_token_ids(client: DataPlaneClient, tmp_path: Path) -> None:
    Tokenizer = pytest.importorskip("tokenizers").Tokenizer  # noqa: N806 - it comes with transformers
    from tokenizers.models import WordLevel

    words = {f"w{n}": n for n in range(50)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))  # noqa: S106
    (row,) = run_json("peek", "p", "b", "--decode", str(tmp_path), "-s", client.target)
    assert row["fields"]["input_ids as text"] == "'w7 w8'"
    (tmp_path / "tokenizer.json").write_text("{")
    code, text = run("peek", "p", "b", "--decode", str(tmp_path), "-s", client.target)
    assert (code, text.startswith(f"dataplane: {tmp_path}/tokenizer.json: ")) == (1, True)


@pytest.mark.parametrize("name", ["rows.jsonl", pytest.param("rows.parquet", marks=NEEDS_PYARROW)])
def test_groups_and_their_versions_outlive_an_export(client: DataPlaneClient, tmp_path: Path, name: str) -> None:
    """A group whose rows do not come together in the file, one of which it has a part, and one that is reserved."""
    values = {"input_ids": [torch.tensor([1])]}
    with client.reserve_group("p", "g", weight_version=3) as one, client.reserve_group("p", "h") as two:
        for row in range(3):
            one.add([f"g{row}"], values, [{"std": 1.0}])
            two.add([f"h{row}"], values, [{"std": float(row)}])
        one.commit(4)
    client.reserve_group("p", "open", ["o0"])
    file, where = str(tmp_path / name), "std > 0.7"
    assert run("export", "p", file, "--where", where, "-s", client.target)[0] == 0
    client.register_partition("copy", ["input_ids", "logprobs", "texts"], 0, ["train"])
    assert run("import", "copy", file, "-s", client.target) == (0, "5 rows imported\n")
    with client.claim("copy", "train", ["input_ids"], 2, whole_groups=True, unit="groups") as claim:
        groups = [(one.group_id, one.rows, one.start_weight_version, one.end_weight_version) for one in claim.groups]
        assert sorted(groups) == [("g", 3, 3, 4), ("h", 2, None, None)]


@pytest.mark.parametrize("name", ["rows.jsonl", pytest.param("rows.parquet", marks=NEEDS_PYARROW)])
def test_an_import_replaces_rows_and_groups_only_if_it_is_told_to(
    client: DataPlaneClient, tmp_path: Path, name: str
) -> None:
    client.put_group("p", "g", ["g0", "g1"], {"input_ids": [torch.tensor([1]), torch.tensor([2])]})
    file = str(tmp_path / name)
    assert run("export", "p", file, "-s", client.target)[0] == 0
    client.put_samples(["a"], "p", tags=[{"std": 9.0}])
    code, text = run("import", "p", file, "-s", client.target)
    assert code == 1
    assert "exists" in text
    code, text = run("import", "p", file, "--replace", "-s", client.target)
    assert (code, text.strip()) == (0, "5 rows imported, 5 cleared before")
    assert client.sample("p", "a").tags["std"] == 0.5
    assert [one and one.group_id for one in client.list_samples("p").groups] == [None, None, None, "g", "g"]


def test_a_row_that_has_come_in_another_group_outlives_the_clear_of_its_former_one(
    client: DataPlaneClient, tmp_path: Path
) -> None:
    for name, groups in (("new", {"g": ["a", "b"], "h": ["c"]}), ("old", {"g": ["a"], "h": ["b", "d"]})):
        client.register_partition(name, ["input_ids"], 0, ["train"])
        for group, ids in groups.items():
            client.put_group(name, group, ids, {"input_ids": [torch.tensor([1])] * len(ids)})
    file = str(tmp_path / "rows.jsonl")
    assert run("export", "new", file, "-s", client.target)[0] == 0
    code, text = run("import", "old", file, "--replace", "-s", client.target)
    assert (code, text.strip()) == (0, "3 rows imported, 3 cleared before")
    assert client.list_samples("old").meta.sample_ids == ["a", "b", "c"]


def test_a_group_that_shrank_while_it_was_exported_is_imported_with_the_rows_that_are_there(
    client: DataPlaneClient, tmp_path: Path
) -> None:
    fields = {"input_ids": {"values": [1], "dtype": "int64"}}
    lines = [{"sample_id": f"g{rows}", "fields": fields, "group": {"id": "g", "rows": rows}} for rows in (3, 2)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run("import", "p", str(tmp_path / "rows.jsonl"), "-s", client.target) == (0, "2 rows imported\n")
    groups = client.list_samples("p").groups
    assert [(one.group_id, one.rows, one.reserved) for one in groups if one is not None] == [("g", 2, False)] * 2


@pytest.mark.parametrize("name", ["rows.jsonl", pytest.param("rows.parquet", marks=NEEDS_PYARROW)])
@pytest.mark.parametrize("rows", [[[1, 2], [3]], [1, 2], [1.5, None], [[], []]], ids=str)
def test_objects_that_look_like_numbers_come_back_as_objects(
    client: DataPlaneClient, tmp_path: Path, name: str, rows: list[object]
) -> None:
    for partition_id in ("one", "other"):
        client.register_partition(partition_id, ["texts"], 0, ["train"])
    client.put_samples(["a", "b"], "one", {"texts": objects(*rows)})
    file = str(tmp_path / name)
    assert run("export", "one", file, "-s", client.target)[0] == 0
    assert run("import", "other", file, "-s", client.target) == (0, "2 rows imported\n")
    assert client.partition("other").fields == client.partition("one").fields
    assert client.get_samples(["a", "b"], "other", ["texts"])["texts"].tolist() == rows


@pytest.mark.parametrize("name", ["rows.jsonl", pytest.param("rows.parquet", marks=NEEDS_PYARROW)])
@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b"\x00", "type bytes"),
        ({"box": (1, 2)}, "type tuple"),
        ([0.5, [np.float64(0.5)]], "type float64"),
        ({"1": "a", 1: "b"}, "a key of type int"),
        ({"x": [torch.ones(1)]}, "type Tensor"),
        (torch.ones(1), "type Tensor"),
    ],
)
def test_a_value_that_json_cannot_hold_is_named(
    client: DataPlaneClient, tmp_path: Path, name: str, value: object, what: str
) -> None:
    """Or that it would give back as another."""
    client.put_samples(["other"], "p", {"texts": NonTensorStack(NonTensorData(data=value))})
    code, text = run("export", "p", str(tmp_path / name), "-s", client.target)
    assert code == 1
    assert f"sample 'other' has a value that JSON cannot hold ({what})" in text


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "complex64"])
def test_numbers_that_json_cannot_hold_are_named(client: DataPlaneClient, tmp_path: Path, name: str) -> None:
    numbers = torch.zeros(1, 8, dtype=torch.uint8).view(getattr(torch, name))
    client.register_partition("q", ["x"], 0, ["train"])
    client.put_samples(["other"], "q", {"x": numbers})
    code, text = run("export", "q", str(tmp_path / "rows.jsonl"), "-s", client.target)
    assert code == 1
    assert f"sample 'other' has a value that JSON cannot hold ({name} numbers)" in text


@pytest.mark.parametrize(
    ("line", "lacks"),
    [
        ("{", "it is not JSON"),
        ("[" * 10**5, "it is not JSON"),
        ('{"sample_id": "a", "fields": {}, "group": {"id": ["g"], "rows": 1}}', "its group is not one"),
        ('{"sample_id": "a", "fields": {}, "group": {"id": "g", "rows": "1"}}', "its group is not one"),
        ('{"sample_id": "a", "fields": {}, "group": {"id": "g", "rows": 1, "end_weight_version": []}}', "its group is"),
        ("[]", 'it needs "sample_id", a text'),
        ('{"fields": {}}', 'it needs "sample_id", a text'),
        ('{"sample_id": "a"}', 'it needs "fields", an object'),
        ('{"sample_id": "a", "fields": {}, "tags": 1}', 'it needs "tags", an object'),
        ('{"sample_id": "a", "fields": {"x": 1}}', 'field \'x\' needs "values" with their "dtype", or "object"'),
        ('{"sample_id": "a", "fields": {"x": {"values": [1]}}}', 'field \'x\' needs "values" with their "dtype"'),
        (
            '{"sample_id": "a", "fields": {"x": {"values": [1], "dtype": "number"}}}',
            "field 'x': dtype 'number' is not a known element type",
        ),
        (
            '{"sample_id": "a", "fields": {"x": {"values": [18446744073709551616], "dtype": "uint64"}}}',
            "field 'x': \"values\" needs uint64 numbers, in lists of equal lengths",
        ),
        (
            '{"sample_id": "a", "fields": {"x": {"values": [[1], [1, 2]], "dtype": "int64"}}}',
            "field 'x': \"values\" needs int64 numbers, in lists of equal lengths",
        ),
        (
            '{"sample_id": "a", "fields": {"x": {"values": [1, 1.7], "dtype": "int64"}}}',
            "field 'x': \"values\" needs int64 numbers, in lists of equal lengths",
        ),
    ],
)
def test_a_line_that_is_no_row_is_named_with_what_it_lacks(
    client: DataPlaneClient, tmp_path: Path, line: str, lacks: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"sample_id": "a", "fields": {{}}}}\n{line}\n')
    code, text = run("import", "p", str(file), "-s", client.target)
    assert code == 1
    assert f"line 2 is not a row as `dataplane export` writes it: {lacks}" in text


@pytest.mark.parametrize("suffix", ["jsonl", pytest.param("parquet", marks=NEEDS_PYARROW)])
def test_a_file_that_cannot_be_read_is_named_in_words(client: DataPlaneClient, tmp_path: Path, suffix: str) -> None:
    missing, bytes_of_no_format = tmp_path / f"missing.{suffix}", tmp_path / f"rows.{suffix}"
    bytes_of_no_format.write_bytes(b"\xff\xfe")
    code, text = run("import", "p", str(missing), "-s", client.target)
    assert (code, text) == (1, f"dataplane: {missing}: No such file or directory\n")
    code, text = run("import", "p", str(bytes_of_no_format), "-s", client.target)
    assert (code, text.startswith(f"dataplane: {bytes_of_no_format} is not ")) == (1, True)
    assert "Error" not in text


@pytest.mark.parametrize("form", ["jsonl", pytest.param("parquet", marks=NEEDS_PYARROW)])
def test_an_export_to_a_full_disk_names_the_file(client: DataPlaneClient, form: str) -> None:
    code, text = run("export", "p", "/dev/full", "--format", form, "-s", client.target)
    assert (code, text) == (1, "dataplane: /dev/full: No space left on device\n")


def test_an_export_whose_reader_has_seen_enough_ends_without_words(client: DataPlaneClient) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [DATAPLANE, "export", "p", "-", "-s", client.target]
    with commands.begin(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        assert process.stderr is not None
        said = process.stderr.read()
    assert (process.returncode, "Error" in said, "Errno" in said, "dataplane:" in said) == (1, False, False, False)


def test_an_export_of_nothing_but_rows_of_reserved_groups_is_empty(client: DataPlaneClient, tmp_path: Path) -> None:
    client.register_partition("q", ["x"], 0, ["train"])
    with client.reserve_group("q", "g", ["a"]) as group:
        group.put(["a"], {"x": [1]})
        assert run("export", "q", str(tmp_path / "rows.jsonl"), "-s", client.target) == (0, "0 rows exported\n")


def test_tail_shows_the_last_rows(client: DataPlaneClient) -> None:
    code, text = run("tail", "p", "-n", "2", "-s", client.target)
    assert (code, text.splitlines()) == (0, ["b  weight_version=2", "c"])


def test_tail_follows_what_arrives(client: DataPlaneClient) -> None:
    command = [DATAPLANE, "tail", "p", "-f", "-n", "1", "-o", "json", "-s", client.target]
    with commands.begin(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["sample_id"] == "c"
        client.put_samples(["d"], "p", {"logprobs": torch.zeros(1, dtype=torch.bfloat16)}, [{"std": 2.0}])
        assert json.loads(process.stdout.readline()) == {"sample_id": "d", "tags": {"std": 2.0}}
        process.send_signal(signal.SIGINT)
    assert process.returncode == -signal.SIGINT  # as of tail(1), so that loops of a shell end, too


def test_drop_needs_a_yes_and_tells_what_it_removed(client: DataPlaneClient) -> None:
    code, text = run("drop", "p", "-s", client.target)
    assert (code, "--yes" in text, client.partition("p").rows) == (2, True, 3)
    code, text = run("drop", "p", "--yes", "-s", client.target)
    assert (code, text.strip(), client.partitions()) == (0, "rows removed: 3", [])


def test_set_version_tells_what_it_retired(client: DataPlaneClient) -> None:
    code, text = run("set-version", "p", "3", "--retire-below", "2", "-s", client.target)
    assert (code, text.strip()) == (0, "rows retired: 1, groups aborted: 0")
    assert client.partition("p").weight_version == 3
