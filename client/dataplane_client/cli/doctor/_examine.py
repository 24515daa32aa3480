"""All checks in their order. Checks that need the server's status are left out when the server does not respond."""

from __future__ import annotations

from collections.abc import Iterator

from dataplane_client.answers.descriptions import ServerStatus, server_status
from dataplane_client.cli._health import health_of
from dataplane_client.cli._options import Format
from dataplane_client.cli._output import print_json
from dataplane_client.cli._server import Server, open_server
from dataplane_client.cli.doctor._host import (
    check_clock,
    check_descriptors,
    check_host_memory,
    check_kernels,
    check_memory_limit,
)
from dataplane_client.cli.doctor._report import Check, print_report
from dataplane_client.cli.doctor._server import check_response, check_shared_memory, check_sockets, check_versions


def examine(address: str, output: Format, timeout_s: float) -> int:
    """Run all checks, print the report, and return the exit code: 1 if there is a problem, else 0."""
    with open_server(address, timeout_s) as server:
        checks = list(_checks(server))
    problems = sum(check.outcome == "problem" for check in checks)
    if output == "json":
        warnings = sum(check.outcome == "warning" for check in checks)
        print_json({"address": address, "problems": problems, "warnings": warnings, "checks": checks})
    else:
        print_report(address, checks)
    return 1 if problems else 0


def _checks(server: Server) -> Iterator[Check]:
    yield from check_sockets(server.address)
    reached, response = check_response(server)
    yield reached
    if response is not None:
        status = server_status(response)
        yield _check_health(status)
        shared = check_shared_memory(server.address, response)
        yield shared
        if shared.outcome == "ok" and not response.nodes:
            yield check_memory_limit(status)
            yield check_host_memory(status)
    yield check_descriptors()
    yield check_versions(None if response is None else response.version)
    yield check_kernels()
    yield check_clock()


def _check_health(status: ServerStatus) -> Check:
    """The same health as that of `dataplane status`."""
    reasons = health_of(status).reasons
    if not reasons:
        return Check("health", "ok", "healthy")
    return Check("health", "warning", "; ".join(reasons), "see `dataplane status` and `dataplane top`")
