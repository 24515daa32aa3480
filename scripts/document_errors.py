"""Generate docs/errors.md from the contract and the tables of server and client: `python scripts/document_errors.py
[--check]`.

--check writes nothing and exits with 1 if the page differs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc

from dataplane_client._connect.error_table import BY_CODE, BY_REASON
from dataplane_client.errors import DataPlaneError, InternalError
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.service.error_table import ERROR_TABLE, RETRY_DELAY_S

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "errors.md"
CONTRACT = ROOT / "proto" / "rl_dataplane" / "v1" / "data_plane.proto"

_HEAD = """\
# Errors

Every error of a call is a `DataPlaneError`. Its message says what is wrong, where, and what would be right. A call that
was refused has changed nothing. For programs an error has

- `reason`: one of the names below;
- `details`: the metadata, which name the partition, sample, field or task;
- `retry_after_s`: seconds after which to try again, or None.

What to do depends on the status, which is that of gRPC:

| status | do |
|---|---|
| INVALID_ARGUMENT | Change the call: no state of the server allows it. |
| NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION | Change the call, or what it met there. Repeating it is no help. |
| OUT_OF_RANGE | End the loop: no more rows come. |
| RESOURCE_EXHAUSTED | Repeat the call later; [Why does it wait?](why.md) shows what would make room. |
| DEADLINE_EXCEEDED | Wait longer (`timeout_s`), or find out [why it waits](why.md). |
| ABORTED | Redo the larger step: claim, reserve or connect again. |
| UNAVAILABLE | Nothing at first: the client has repeated the call until its deadline. Then look at the server. |
| UNAUTHENTICATED, PERMISSION_DENIED | Change the credentials or the [access file](operations.md#who-may-call). |
| INTERNAL | Report it: it is a defect. |

Three kinds have no reason, since no server answered: `UnsupportedTypeError` for a value that cannot be sent,
`ClosedError` for a client that was closed, and `UnavailableError` or `DeadlineError` for a server that was not reached.
The [API](api.md#errors) describes the classes.

`scripts/document_errors.py` generates this page from the contract and from the tables of server and client; `make test`
compares them.

| reason | raised as | status | meaning |
|---|---|---|---|
"""


def main() -> None:
    page = _HEAD + "".join(_rows())
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif PAGE.read_text() != page:
        sys.exit("docs/errors.md is stale: run scripts/document_errors.py")


def _rows() -> Iterator[str]:
    for name, text in sorted(_meanings()):
        status, _, meaning = text.partition(": ")
        code = grpc.StatusCode[status.removesuffix(" with RetryInfo")]
        if name in Reason.__members__:
            _compare(Reason[name], code, status.endswith("RetryInfo"))
        error = BY_REASON.get(name) or BY_CODE.get(code, InternalError)
        yield f"| `{name}` | {_linked(error)} | {code.name} | {meaning[0].upper()}{meaning[1:]} |\n"


def _meanings() -> Iterator[tuple[str, str]]:
    """Each reason of the contract, and the comment before it as one line."""
    enum = CONTRACT.read_text().partition("enum ErrorReason {\n")[2].partition("\n}")[0]
    for comment, name in re.findall(r"((?:  //.*\n)+)  ERROR_REASON_(\w+) = [1-9]", enum):
        yield name, " ".join(line.strip().removeprefix("// ") for line in comment.splitlines())


def _compare(reason: Reason, code: grpc.StatusCode, waits: bool) -> None:
    if (ERROR_TABLE[reason], reason in RETRY_DELAY_S) != (code, waits):
        sys.exit(f"{reason.name}: its comment in {CONTRACT.name} names another status than the server's table")


def _linked(error: type[DataPlaneError]) -> str:
    return f"[`{error.__name__}`](api.md#{error.__name__.lower()})"


if __name__ == "__main__":
    main()
