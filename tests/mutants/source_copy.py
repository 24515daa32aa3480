"""A copy of the repository in which one file at a time can be another.

Files are hard links where the file system allows; a mutated file is a new one, so the repository never changes. Nor
does the copy when files of the repository are replaced, as Git and editors do.

The copy has an environment of its own, which has the packages of ours but finds the library in the copy. So it is the
copy's library that all processes of a test have, whatever they do to their environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.unasync import WRITTEN_TWICE, derive_twins
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = {
    "dataplane_server": "dataplane_server",
    "client": "dataplane_client",
    "proto": "rl_dataplane",
    "trainer_adapter": "trainer_adapter",
    "integrations": "dataplane_trl",
}
"""Folders of the repository, and a package in each."""
_BUILT = Path("client/dataplane_client/_values/row_kernels/_row_kernels.so")
_COMPILE = ["cc", "-O3", "-fPIC", "-shared", "-pthread", "-std=c11"]
_FOREIGN = "import importlib.util as u; print(*[u.find_spec(name).origin for name in {names}], sep='\\n')"


class SourceCopy:
    """The copy in `folder`, which must not exist. scratch: for what tests and commands write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / ".venv" / "bin" / "python"
        self.scratch = folder.with_name(f"{folder.name}t")
        self.scratch.mkdir()
        self._zygote: subprocess.Popen[bytes] | None = None
        self._running: int | None = None  # the leader of a session
        for path in [*_tracked(), _BUILT]:
            if (ROOT / path).is_file():
                _link(ROOT / path, folder / path)
        self._make_environment()
        self._check_environment()

    @contextlib.contextmanager
    def having(self, mutant: Mutant) -> Iterator[None]:
        """The copy has the fault within the block. ValueError as `Mutant.check`."""
        changed = self._mutate(mutant)
        try:
            yield
        finally:
            for path in changed:
                _sound(path).replace(path)

    def test(self, arguments: Sequence[str], timeout_s: float | None) -> tuple[int | None, str]:
        """Run pytest in the copy. Returns the exit code, None at the time limit, and what was printed."""
        if self._zygote is None:
            self._zygote = self._begin(["-m", "tests.mutants.zygote"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        zygote, output = self._zygote, self.scratch / "output"
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        zygote.stdin.write(json.dumps({"arguments": arguments, "output": str(output)}).encode() + b"\n")
        zygote.stdin.flush()
        self._running = int(zygote.stdout.readline())
        return self._outcome(lambda: int(zygote.stdout.readline()), timeout_s, output)  # type: ignore[union-attr]

    def run(self, arguments: Sequence[str], timeout_s: float | None) -> tuple[int | None, str]:
        """Run a Python program in the copy. Returns as `test`."""
        output = self.scratch / "output"
        with output.open("wb") as file:
            process = self._begin(arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        self._running = process.pid
        return self._outcome(process.wait, timeout_s, output)

    def _begin(self, arguments: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TMPDIR": str(self.scratch)}
        command = [str(self.python), *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True, **streams)

    def _outcome(self, wait: Callable[[], int], timeout_s: float | None, output: Path) -> tuple[int | None, str]:
        late = threading.Event()

        def end() -> None:
            late.set()
            self.stop()

        timer = threading.Timer(timeout_s or threading.TIMEOUT_MAX, end)
        timer.start()
        try:
            code = wait()
        finally:
            timer.cancel()
            self.stop()  # servers and ranks that are left behind
        return None if late.is_set() else code, output.read_text(errors="replace")

    def stop(self) -> None:
        """End what runs in the copy."""
        running, self._running = self._running, None  # another process may get its number
        if running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running, signal.SIGKILL)

    def close(self) -> None:
        """End all processes of the copy."""
        self.stop()
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote.communicate()

    def _mutate(self, mutant: Mutant) -> list[Path]:
        """Returns the files that are others now."""
        path = self.folder / mutant.file
        mutated = mutant.mutated(path.read_text())
        path.rename(_sound(path))
        path.write_text(mutated)
        if path.parent.name == "_async" and path.name not in WRITTEN_TWICE:
            twin = path.parent.with_name("_sync") / path.name
            twin.rename(_sound(twin))
            twin.write_text(derive_twins([path])[0][path.name])
            return [path, twin]
        if path.suffix in (".c", ".h"):
            built = self.folder / _BUILT
            built.rename(_sound(built))
            subprocess.run([*_COMPILE, "-o", str(built), str(path.with_name("row_kernels.c"))], check=True)
            return [path, built]
        return [path]

    def _make_environment(self) -> None:
        """Ours, but for the packages of this repository, and with our commands."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.python.parents[1]], check=True)
        inside = next(self.python.parents[1].glob("lib/python*/site-packages"))
        paths = [*(self.folder / name for name in _PACKAGES), sysconfig.get_path("purelib")]
        (inside / "mutated.pth").write_text("".join(f"{path}\n" for path in paths))
        ours = Path(sys.executable).parent
        for script in ours.iterdir():
            with script.open("rb") as file:
                is_ours = file.readline().strip() == f"#!{ours}/python".encode()
            if is_ours and not (self.python.parent / script.name).exists():
                text = script.read_text().replace(f"#!{ours}/python", f"#!{self.python}", 1)
                copied = self.python.parent / script.name
                copied.write_text(text)
                shutil.copymode(script, copied)

    def _check_environment(self) -> None:
        """Fail if a process without variables would import a package of the library from elsewhere."""
        command = [str(self.python), "-c", _FOREIGN.format(names=list(_PACKAGES.values()))]
        found = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, check=True).stdout.split()
        expected = [str(self.folder / name / package / "__init__.py") for name, package in _PACKAGES.items()]
        if found != expected:
            raise RuntimeError(f"processes of the copy import {found}, not {expected}")


def _tracked() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in names.split("\0") if name]


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _sound(path: Path) -> Path:
    """Where a file is kept while another is in its place."""
    return path.with_name(f"{path.name}.sound")
