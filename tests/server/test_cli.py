"""The command line: sizes, and flags that end the command with a message and exit code 2."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from importlib.metadata import version

import pytest

from dataplane_server.cli import main, parse_mode, parse_size


def test_a_size_is_a_number_and_a_unit() -> None:
    sizes = {"1000": 1000, "4GiB": 4 << 30, "512 MiB": 512 << 20, "1.5KiB": 1536, "10GB": 10**10, "2kB": 2000}
    sizes |= {"1TiB": 1 << 40, " 7 ": 7, "0": 0}
    assert {text: parse_size(text) for text in sizes} == sizes
    for text in ("", "GiB", "4gib", "4 G", "-1", "1e9", "4GiBs", "0x10", "4,5GiB", "nan", "9" * 400):
        with pytest.raises(ArgumentTypeError, match=f"'{text}'.*KiB, MiB, GiB"):
            parse_size(text)


def test_a_mode_is_three_octal_digits() -> None:
    modes = {"0660": 0o660, "660": 0o660, "0600": 0o600, "777": 0o777}
    assert {text: parse_mode(text) for text in modes} == modes
    for text in ("", "66", "0o660", "888", "rw-rw----", "1660", "-660", "+660", " 660", "0x1b0"):
        with pytest.raises(ArgumentTypeError, match=rf"'{re.escape(text)}'.*0660"):
            parse_mode(text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nope"], "unrecognized arguments: --nope"),
        (["--memory", "4XiB"], "--memory: '4XiB' is not a size"),
        (["--memory", "64"], "--memory: 64 bytes are too few; a server needs at least 1MiB"),
        (["--memory", "9000TiB"], "--memory: 9216000.0 GiB is more than the "),
        (["--memory", "4194304TiB"], "--memory must be at least 1 and less than 2**62"),
        (["--bookkeeping", "0"], "--bookkeeping must be at least 1"),
        (["--max-rows", "0"], "--max-rows must be at least 1"),
        (["--max-rows", "many"], "argument --max-rows: invalid int value: 'many'"),
        (["--max-rows", "9" * 19], "--max-rows must be at least 1 and less than 2**62"),
        (["--durability", "disk"], "--durability 'disk' needs a --data-dir"),
        (["--durability", "memory", "--data-dir", "/d"], "--durability 'memory' needs no --data-dir"),
        (["--snapshot-dir", "/s"], "--snapshot-dir needs a --data-dir"),
        (["--data-dir", ""], "--data-dir: '' names no directory"),
        *(([f"--allow-user={user}"], "is not the number of a user") for user in ("-1", "4294967295", "root")),
        (["--listen", "somewhere"], "'somewhere' is not host:port"),
        (["--health", "50052"], "health: '50052' is not host:port"),
        (["--socket-mode", "rw"], "--socket-mode: 'rw' is not a file mode"),
        (["--socket-mode", "0400"], "--socket-mode must be 0600 to 0777"),
        (["--grace", "-1"], "--grace must be finite and not negative, got -1.0"),
        (["--cluster-mirrors"], "--cluster-mirrors is for a cluster; add --cluster ray, or leave it out"),
        (["--ray-address", "10.0.0.1:6379"], "--ray-address is for a cluster"),
        (["--cluster", "ray", "--cluster-cache", "1 pound"], "'1 pound' is not a size"),
        (["--cluster", "ray", "--direct", "127.0.0.1:0"], "direct: a cluster has no such port"),
        (["--cluster", "ray", "--no-share-memory"], "share_memory: clients of a cluster use the memory of their nodes"),
        (["--cluster", "ray", "--standby", "/d"], "standby: Ray restarts the coordinator of a cluster"),
        (["--cluster", "ray", "--data-dir=/d", "--snapshot-dir=/s"], "--snapshot-dir: a cluster keeps no snapshots"),
        (["--accept-loss"], "--accept-loss is for a directory; add --data-dir, or leave it out"),
        (["--log-history", "1GiB"], "--log-history is for a directory"),
        (["--log-level", "loud"], "argument --log-level: invalid choice: 'loud'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_flags_end_the_command_with_code_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    assert re.fullmatch(
        rf"dataplane-server: error: .*{re.escape(message)}.* \(see dataplane-server --help\)\n", capsys.readouterr().err
    )


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"dataplane-server {version('rl-dataplane')}\n")


def test_help_tells_every_flag_with_its_default_in_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    _, version_flag, *flags = re.split(r"\n  (?=--)", capsys.readouterr().out)
    assert version_flag.startswith("--version")
    assert [flag for flag in flags if not re.search(r"\(default:\s[^()]+\)\s*$", flag)] == []
    told = {flag.split()[0] for flag in flags}
    assert len(told) >= 15
    assert {"--listen", "--http", "--memory", "--max-rows", "--grace", "--insecure", "--log-level", "--health"} <= told
    assert any(flag.startswith("--socket-mode MODE") for flag in flags)
