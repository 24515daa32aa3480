"""Generate the modules of the contract: `python scripts/generate_proto.py [--check]`.

--check changes nothing and exits with 1 if a committed module is stale.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "proto"
PACKAGE = "rl_dataplane/v1"
MESSAGES, SERVICE = ("python", "mypy"), ("grpc_python", "mypy_grpc")
CONTENTS = {"data_plane.proto": (*MESSAGES, *SERVICE), "local.proto": MESSAGES}


def generate(output_root: Path) -> None:
    """Write `*_pb2.py`, `*_pb2_grpc.py` and their stubs below output_root, at the paths of their package."""
    bundled = Path(grpc_tools.__file__).parent / "_proto"
    for name, kinds in CONTENTS.items():
        out = [f"--{kind}_out={output_root}" for kind in kinds]
        status = protoc.main(["protoc", f"-I{ROOT}", f"-I{bundled}", *out, f"{PACKAGE}/{name}"])
        if status != 0:
            raise SystemExit(status)


def stale_files() -> list[str]:
    """Names of generated files that do not match the contract."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {path.name: path.read_text() for path in (Path(scratch) / PACKAGE).iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / PACKAGE).glob("*_pb2*")}
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


if __name__ == "__main__":
    if "--check" in sys.argv:
        stale = stale_files()
        print("\n".join(f"{name} is stale" for name in stale), end="\n" if stale else "")
        raise SystemExit(1 if stale else 0)
    generate(ROOT)
