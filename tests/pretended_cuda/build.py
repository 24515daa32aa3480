"""Compiles guard.cpp once for each release of torch. Torch is not imported here: the library comes before it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("guard.cpp")
_BUILT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rl-dataplane-tests"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


def torch_folder() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def library() -> Path:
    """The shared library, compiled if it is not there (9 s of CPU). Raises RuntimeError with what the compiler says."""
    names = importlib.metadata.version("torch").encode() + str(torch_folder()).encode()
    path = _BUILT / f"guard-{hashlib.sha256(_SOURCE.read_bytes() + names).hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile(path.with_suffix(f".{os.getpid()}"))
        path.with_suffix(f".{os.getpid()}").replace(path)
    return path


def _compile(target: Path) -> None:
    include = torch_folder() / "include"
    folders = [f"-I{include}", f"-I{include}/torch/csrc/api/include"]
    linked = [f"-L{torch_folder()}/lib", "-lc10", "-ltorch_cpu"]
    flags = ["-std=c++20", "-shared", "-fPIC", "-O0", "-w"]
    command = [compiler() or "g++", *flags, *folders, str(_SOURCE), "-o", str(target), *linked]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{ended.stderr}")
