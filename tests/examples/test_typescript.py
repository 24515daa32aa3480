"""`examples/typescript`: producer and rater on grpc-js, whose rows a trainer in Python claims."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dataplane_client import connect
from dataplane_server.testing import running_server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The folder of the compiled programs."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = tmp_path / "examples" / "typescript"
    ignored = shutil.ignore_patterns("node_modules", "build", "generated")
    shutil.copytree(ROOT / "examples" / "typescript", folder, ignore=ignored)
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    install = ["npm", "install", "--no-audit", "--no-fund"]
    installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        pytest.skip(f"npm cannot install: {installed.stderr}")
    built = subprocess.run(
        ["npm", "run", "build"], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert built.returncode == 0, built.stdout
    return folder / "build"


@pytest.mark.long
def test_groups_put_and_rated_in_typescript_are_trained_on_in_python(programs: Path, tmp_path: Path) -> None:
    with running_server(listen=f"unix://{tmp_path}/socket") as address:
        started = [
            subprocess.Popen(["node", str(programs / name), address, *more], stdout=subprocess.PIPE, text=True)
            for name, more in (("rate.js", ()), ("produce.js", ("3",)))
        ]
        printed = [program.communicate(timeout=200)[0].splitlines() for program in started]
        assert [program.returncode for program in started] == [0, 0]
        assert [len(lines) for lines in printed] == [3, 3]
        with (
            connect(address) as client,
            client.claim("rollouts", "train", ["advantage"], 3, whole_groups=True) as claim,
        ):
            assert [group.group_id for group in claim.groups] == ["prompt-0", "prompt-1", "prompt-2"]
            fields = ["input_ids", "reward", "advantage"]
            rows = client.read_columns(claim.meta, fields, layout="jagged")
            tokens = [row.tolist() for row in rows["input_ids"].unbind()]
            assert [len(row) for row in tokens] == [
                3 + (prompt + sample) % 4 for prompt in range(3) for sample in range(4)
            ]
            rewards = [sum(token % 2 == 0 for token in row) / len(row) for row in tokens]
            means = [sum(rewards[first : first + 4]) / 4 for first in (0, 4, 8) for _ in range(4)]
            assert rows["reward"].tolist() == pytest.approx(rewards)
            expected = [reward - mean for reward, mean in zip(rewards, means, strict=True)]
            assert rows["advantage"].tolist() == pytest.approx(expected, abs=1e-6)
