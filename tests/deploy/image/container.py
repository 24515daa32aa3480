"""The server's root as a container engine would run it, by means of the kernel's own tools.

A process is the first of its PID namespace, its root is the built one, mounted read-only, with volumes where pods have
them; it has the user, the environment and the entry point that deploy/Dockerfile names, and can gain no rights. Network
is the machine's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path

from tests.deploy.image.dockerfile import DOCKERFILES, REPOSITORY, stages

ROOT = REPOSITORY / "build" / "image-root"
IMAGE = stages(DOCKERFILES["server"])[-1]
USER, GROUP = map(int, IMAGE.one("USER").split(":"))
_WAIT_S = 60.0

# The mounts vanish with the namespace. The last word but one keeps programs with setuid bits from giving rights.
_MOUNTS = """
set -eu
root=$1 volume=$2 user=$3
shift 3
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$volume" "$root/run/dataplane"
mount -o remount,bind,ro "$root"
exec /usr/bin/setpriv --no-new-privs /usr/sbin/chroot --userspec="$user" "$root" "$@"
"""


def debian_packages_in_root() -> dict[str, str]:
    """Versions by name, as the root tells scanners."""
    told = [HeaderParser().parsestr(path.read_text()) for path in (ROOT / "var/lib/dpkg/status.d").iterdir()]
    return {fields["Package"]: fields["Version"] for fields in told}


@contextlib.contextmanager
def volume() -> Iterator[Path]:
    """An empty directory for /run/dataplane, as a pod's volume is: its group's, which is the server's."""
    folder = Path(tempfile.mkdtemp(prefix="dataplane-volume-"))  # not below tmp_path, into which only root can look
    try:
        os.chown(folder, 0, GROUP)
        folder.chmod(0o2775)
        yield folder
    finally:
        shutil.rmtree(folder)


def run(command: Sequence[str], mounted: Path) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a command in the root. Raises TimeoutExpired after a minute."""
    return subprocess.run(
        _in_root(command, mounted), env=_environment(), capture_output=True, text=True, timeout=_WAIT_S
    )


@contextlib.contextmanager
def server(arguments: Sequence[str], mounted: Path) -> Iterator[ServerProcess]:
    """The image's entry point with other arguments; killed at the end unless it has ended before."""
    command = _in_root([*IMAGE.words("ENTRYPOINT"), *arguments], mounted)
    with subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL) as process:
        try:
            yield ServerProcess(process)
        finally:
            _kill(process)


class ServerProcess:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.started_at = time.monotonic()

    @property
    def pid(self) -> int:
        """Of the server itself, as the machine numbers it."""
        (child,) = _children(self._process.pid)
        return child

    def end(self) -> int:
        """Send SIGTERM and wait; the exit code. Raises TimeoutExpired after a minute."""
        os.kill(self.pid, signal.SIGTERM)
        return self._process.wait(_WAIT_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and what runs in its namespace. The child would survive its parent, for whoever changes its user loses
    the signal that tells of the parent's death.
    """
    if process.poll() is None:
        for child in _children(process.pid):
            os.kill(child, signal.SIGKILL)
        process.kill()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _in_root(command: Sequence[str], mounted: Path) -> list[str]:
    namespaces = ["unshare", "--mount", "--pid", "--fork"]
    return [*namespaces, "sh", "-c", _MOUNTS, "sh", str(ROOT), str(mounted), f"{USER}:{GROUP}", *command]


def _environment() -> dict[str, str]:
    return IMAGE.pairs("ENV")
