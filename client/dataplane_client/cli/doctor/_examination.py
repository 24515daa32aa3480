"""All checks in their order. What follows from an answer of the server is left out when there is none."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from dataplane_client.cli._health import health_of
from dataplane_client.cli._options import Format
from dataplane_client.cli._output import print_json
from dataplane_client.cli._server import Server
from dataplane_client.cli.doctor._answers import answers
from dataplane_client.cli.doctor._check import Check
from dataplane_client.cli.doctor._clock import clock_check
from dataplane_client.cli.doctor._descriptors import descriptor_check
from dataplane_client.cli.doctor._memory_limits import host_memory_check, memory_limit_check
from dataplane_client.cli.doctor._report import print_report
from dataplane_client.cli.doctor._shared_memory import shared_memory_check
from dataplane_client.cli.doctor._socket_files import socket_checks
from dataplane_client.cli.doctor._versions import kernel_check, version_check
from dataplane_client.descriptions import ServerStatus, server_status


def examine(address: str, output: Format, timeout_s: float) -> int:
    """The exit code: 0 without problems, else 1."""
    try:
        server = Server(address, timeout_s)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with server:
        checks = list(_checks(server))
    problems = sum(check.outcome == "problem" for check in checks)
    if output == "json":
        warnings = sum(check.outcome == "warning" for check in checks)
        print_json({"address": address, "problems": problems, "warnings": warnings, "checks": checks})
    else:
        print_report(address, checks)
    return 1 if problems else 0


def _checks(server: Server) -> Iterator[Check]:
    yield from socket_checks(server.address)
    reached, answer = answers(server)
    yield reached
    if answer is not None:
        status = server_status(answer)
        yield _health_check(status)
        shared = shared_memory_check(server.address, answer)
        yield shared
        if shared.outcome == "ok":
            yield memory_limit_check(status.memory_budget_bytes)
            yield host_memory_check(status)
    yield descriptor_check()
    yield version_check(None if answer is None else answer.version)
    yield kernel_check()
    yield clock_check()


def _health_check(status: ServerStatus) -> Check:
    """As `dataplane status` judges it."""
    reasons = health_of(status).reasons
    if not reasons:
        return Check("health", "ok", "healthy")
    return Check("health", "warning", "; ".join(reasons), "look at it with `dataplane status` and `dataplane top`")
