"""Runs pytest in forked children: `python -m tests.mutants.zygote`, which has imported what takes seconds of CPU.

It imports nothing of the library, so a child has the library as it is then. Each line of its input is a JSON object:
`arguments` of pytest, and the file `output`. It answers with the child's process id, and then with its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from typing import Any

import pytest

_SLOW = ("grpc.aio", "hypothesis", "numpy", "ray", "tensordict", "torch", "transformers")


def main() -> None:
    for name in _SLOW:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    for line in sys.stdin:
        work = json.loads(line)
        child = os.fork()
        if not child:
            _run(work)
        answers.write(f"{child}\n")
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")


def _run(work: dict[str, Any]) -> None:
    """The life of a child, which has a session of its own."""
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        os.setsid()
        output = os.open(work["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, file in ((0, nothing), (1, output), (2, output)):
            os.dup2(file, number)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a file
        sys.argv = ["pytest", *work["arguments"]]
        code = int(pytest.main(work["arguments"]))
    except BaseException:  # noqa: BLE001  # the parent's life is not this one's
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
