"""Query a running Prometheus over HTTP, or run one for as long as a test or a picture needs it."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNPACKED = Path(sys.prefix) / "prometheus" / "bin"
"""Folder into which `make` unpacks Debian's package."""
_START_S = 30.0
_ANSWER_S = 30.0


@dataclass(frozen=True)
class Series:
    """A time series. points: time in seconds since the epoch, and value (NaN if there is none)."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class Prometheus:
    """A client of the Prometheus at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: object) -> Any:
        """Get the data of an answer of the HTTP API (`path` below /api/v1).

        Raises ValueError with the reason of a refusal, OSError if there is no answer within 30 s.
        """
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_ANSWER_S) as response:  # noqa: S310  # http, as the caller said
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode(errors='replace')}") from None

    def query_range(self, expr: str, start: float, end: float, step_s: float) -> list[Series]:
        """Get every series of an expression between two times (seconds since the epoch)."""
        data = self.get("query_range", query=expr, start=start, end=end, step=step_s)
        return [Series(each["metric"], [(at, float(value)) for at, value in each["values"]]) for each in data["result"]]


def find_command(name: str) -> Path | None:
    """The path of `promtool` or `prometheus`: the one unpacked by make, else the one on PATH, else None."""
    found = shutil.which(name, path=str(_UNPACKED)) or shutil.which(name)
    return None if found is None else Path(found)


@contextlib.contextmanager
def running_prometheus(
    folder: Path, targets: Sequence[str], *, interval: str, rules: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """Run a Prometheus for the duration of a `with` block.

    It scrapes `targets` (host:port) as job dataplane and stores its data in `folder`. The block starts after the first
    scrape, about 5 s. interval: time between scrapes, and between evaluations of rules, such as "1s". Raises
    FileNotFoundError if there is no Prometheus, RuntimeError if it does not start.
    """
    command = find_command("prometheus")
    if command is None:
        raise FileNotFoundError("no prometheus on PATH or in the environment; `make test` installs it")
    config, log = folder / "prometheus.json", folder / "prometheus.log"
    config.write_text(json.dumps(_config(targets, interval, rules)))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with log.open("wb") as stderr, subprocess.Popen([command, *flags], stderr=stderr, cwd=folder) as process:
        try:
            prometheus = Prometheus(f"http://{address}")
            _wait_for_scrape(prometheus, process, log)
            yield prometheus
        finally:
            process.terminate()


def _config(targets: Sequence[str], interval: str, rules: Sequence[Path]) -> dict[str, object]:
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [{"job_name": "dataplane", "static_configs": [{"targets": list(targets)}]}],
    }


def free_port() -> int:
    """Find a free port. Prometheus does not report which port the system chose for port 0."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_for_scrape(prometheus: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the first scrape. Prometheus discovers its targets after 5 s, whatever the interval."""
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):  # not listening yet, not ready yet
            if prometheus.get("query", query="up")["result"]:
                return
        time.sleep(0.05)
    raise RuntimeError(f"prometheus did not start:\n{log.read_text(errors='replace')[-2000:]}")
