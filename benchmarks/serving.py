"""The inside of a worker process: answers calls in JSON, one a line, until its input ends.

A line `{"call": name, "arguments": {...}}` is answered by `{"ok": {...}}` or `{"error": text}`. Only answers go to
standard output; output of libraries goes to standard error. Needs only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Calls: TypeAlias = Mapping[str, Callable[..., Mapping[str, Any]]]


def serve(calls: Calls) -> None:
    """Answer calls until standard input ends."""
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(_answer(calls, json.loads(line))) + "\n")


def _answer(calls: Calls, request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return {"ok": calls[request["call"]](**request["arguments"])}
    except Exception as error:  # noqa: BLE001  # the caller receives every failure of a peer
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
