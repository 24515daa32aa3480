"""Shell completion of partition and task names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.cli.reading import run

DATAPLANE = Path(sys.executable).parent / "dataplane"


def script(shell: str) -> str:
    """The completion script of a shell."""
    code, text = run(_DATAPLANE_COMPLETE=f"source_{shell}")
    assert code == 0
    return text


def offered(line: str, **environment: str) -> list[str]:
    """The completions of a line, in the format of fish, which is plain lines."""
    environment |= {"_DATAPLANE_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code, text = run(_TYPER_COMPLETE_ARGS=line, **environment)
    assert code == 0
    return text.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("dataplane describe ", ["train", "val"]),
        ("dataplane describe v", ["val"]),
        ("dataplane sample tr", ["train"]),
        ("dataplane dead-letters train ", ["prev_lp", "train"]),
        ("dataplane reset train p", ["prev_lp"]),
        ("dataplane reset val ", []),
        ("dataplane status -o ", ["table", "json"]),
    ],
)
def test_partitions_and_tasks_of_the_running_server_are_offered(address: str, line: str, names: list[str]) -> None:
    assert offered(line, DATAPLANE_SERVER=address) == names


@pytest.mark.parametrize("address", ["unix:///nowhere/dataplane.sock", "nowhere"])
def test_without_a_server_nothing_is_offered_or_printed(address: str) -> None:
    assert offered("dataplane describe ", DATAPLANE_SERVER=address) == []


def test_bash_completes_the_name_of_a_partition(address: str, tmp_path: Path) -> None:
    profile = tmp_path / "completion.bash"
    profile.write_text(script("bash"))
    code = f"""
. {profile}
COMP_WORDS=(dataplane describe t) COMP_CWORD=2
_dataplane_completion dataplane
echo "${{COMPREPLY[@]}}"
"""
    environment = {"PATH": f"{DATAPLANE.parent}:/usr/bin:/bin", "DATAPLANE_SERVER": address}
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("train\n", "")
