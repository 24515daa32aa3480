"""Compiles the row kernels beside their module, for wheels and editable installs alike.

The library is a plain shared one without Python's headers, so one build serves every Python of a platform. Without a
compiler, or where it fails, the package is pure Python and copies rows with NumPy.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "client/dataplane_client/_values/row_kernels"
FLAGS = ("-O3", "-fPIC", "-shared", "-pthread", "-std=c11")


class RowKernelsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = Path(self.root, FOLDER, "_row_kernels.so")
        problem = build(library.with_name("row_kernels.c"), library)
        if problem:
            self.app.display_warning(f"The row kernels are not compiled ({problem}); rows will be copied with NumPy.")
            return
        build_data["artifacts"].append(f"/{FOLDER}/{library.name}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def build(source: Path, library: Path) -> str | None:
    """Compile source to library; None, or why there is none."""
    compiler = find_compiler()
    if compiler is None:
        return "found no C compiler as $CC, cc, gcc or clang"
    # A process may have mapped the library that is there: it is replaced, never written over.
    built = library.with_name(f"{library.name}.{os.getpid()}")
    command = [*compiler, *FLAGS, "-o", str(built), str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's compiler
        if done.returncode:
            return f"{shlex.join(command)} failed: {done.stderr.strip()}"
        built.replace(library)
    finally:
        built.unlink(missing_ok=True)
    return None


def find_compiler() -> list[str] | None:
    for candidate in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(candidate)
        if words and shutil.which(words[0]):
            return words
    return None
