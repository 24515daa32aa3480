"""Real server processes, from their start until the health service reports them ready; and the memory of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_START_S = 60.0
_SERVING = health_pb2.HealthCheckResponse.SERVING
_EAGER = (("grpc.initial_reconnect_backoff_ms", 5), ("grpc.min_reconnect_backoff_ms", 5))


@dataclass(frozen=True)
class ServerProcess:
    """A running server. started_s: seconds from the start of the process until its health service reported SERVING."""

    pid: int
    unix: str
    tcp: str
    http: str
    started_s: float


@contextmanager
def server_process(memory: str = "4GiB", *flags: str, log: IO[str] | None = None) -> Iterator[ServerProcess]:
    """Run a server process with a budget and more flags, on a Unix socket and a TCP port. log: gets its events."""
    with tempfile.TemporaryDirectory() as folder:
        socket = f"unix://{Path(folder) / 'dataplane.sock'}"
        command = [sys.executable, "-m", "dataplane_server", "--http", "127.0.0.1:0", "--memory", memory]
        command += ["--log-level", "error" if log is None else "info", "--listen", socket, "--listen", "127.0.0.1:0"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--direct", "127.0.0.1:0", *flags], stdout=subprocess.PIPE, stderr=log, bufsize=0
        )
        try:
            _wait_until_serving(socket, process)
            started_s = time.perf_counter() - began
            yield ServerProcess(process.pid, socket, *_tcp_addresses(process), started_s)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_serving(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with grpc.insecure_channel(address, _EAGER) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1.0)
            except grpc.RpcError:
                answer = None
        if answer is not None and answer.status == _SERVING:
            return
        time.sleep(0.005)
    raise RuntimeError("the server did not start")


def _tcp_addresses(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """The gRPC and HTTP addresses that the server prints."""
    if process.stdout is None or not (line := process.stdout.readline()):
        raise RuntimeError("the server did not print its addresses")
    serving = json.loads(line)
    return serving["listen"][1], serving["http"]


def memory(field: str, pid: int | None = None) -> int:
    """Bytes of a process by the name that proc(5) has for them: VmRSS, VmHWM (the peak of it), RssAnon, RssShmem."""
    for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"the system does not report {field}")


def forget_peak(pid: int | None = None) -> None:
    """Have VmHWM begin anew with what is resident now."""
    Path(f"/proc/{pid or os.getpid()}/clear_refs").write_text("5")
