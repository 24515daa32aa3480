"""The compiled kernel is what runs where a compiler is, in forked processes and where no thread can be started too."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dataplane_client._values import row_kernels
from dataplane_client._values.row_kernels import default_threads, kernel_name

# Both stories are told by processes of their own: a fork wants one without threads, a limit one without cached stacks.
COPY = """
import os, resource
import numpy as np
from dataplane_client._values.row_kernels import RowCopy, copy_rows
from dataplane_client._values.row_kernels._copies import check_copies
from dataplane_client._values.row_kernels._native import copy_rows_in_c

source = np.random.default_rng(1).integers(0, 256, 1 << 24, np.uint8)
zero = np.zeros(1, np.int64)
copy = RowCopy(np.zeros_like(source), zero, source, zero, np.array([len(source)], np.int64))
"""

FORK = """
copy_rows([copy], 4)
assert np.array_equal(copy.target, source)
copy.target[:] = 0
child = os.fork()
copy_rows([copy], 4)
assert np.array_equal(copy.target, source)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""

NO_THREADS = """
checked = check_copies([copy])
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), used + (1 << 20)))
assert copy_rows_in_c(checked, 4) == 1
assert memoryview(copy.target) == memoryview(source)
"""


COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")
with_compiler = pytest.mark.skipif(not COMPILER, reason="no C compiler")


@with_compiler
def test_the_kernel_can_be_loaded_where_the_processor_has_no_sse2(tmp_path: Path) -> None:
    source, library = Path(row_kernels.__file__).with_name("row_kernels.c"), tmp_path / "kernels.so"
    flags = ["-fPIC", "-shared", "-pthread", "-std=c11", "-U__SSE2__"]
    subprocess.run([COMPILER, *flags, "-o", library, source], check=True, capture_output=True)
    assert ctypes.CDLL(str(library)).row_kernels_version()


@with_compiler
def test_where_a_compiler_is_the_kernel_is_compiled() -> None:
    assert kernel_name == "c", "install the package again: the row kernels are missing or of another version"


def test_threads_follow_the_cpus_this_process_may_run_on() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert default_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert default_threads() == min(len(allowed), 8)


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(FORK, id="a-forked-process-and-its-parent"),
        pytest.param(
            NO_THREADS,
            id="no-thread-can-be-started",
            marks=pytest.mark.skipif(kernel_name != "c", reason="no compiled kernel"),
        ),
    ],
)
def test_all_is_copied(story: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", COPY + story]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
