"""Commands and scripts as processes that start in milliseconds: each is forked from a zygote that has imported the
server, and torch once a command needed it.

`begin` and `run` are for the project's commands, and for `python FILE`, `python -c CODE` and `python -m MODULE`, what
`subprocess.Popen` and `subprocess.run` are. Started as users start it, a command spends a second of CPU on its imports,
and a server with a data directory two; tests of starting itself, such as `tests/client/cli/test_start.py`, do that.

A forked command has its own streams, environment, folder and limit of descriptors, and ends as Python ends. Its
helpers, such as the checkpointer, are forked, too, from a zygote that it leaves behind before it has threads. It ends
with the process that began it, however that ends; its helpers see then that their standard input ends, as in a pod. Two
zygotes take turns, so that no server has the hashes of strings that the one before had.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import itertools
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

_ROOT = Path(__file__).parents[1]
_MODULES = {
    "dataplane": "dataplane_client.cli",
    "dataplane-server": "dataplane_server.cli",
    "dataplane_server": "dataplane_server.cli",
    "dataplane_server.durability.checkpointer": "dataplane_server.durability.checkpointer",
    "dataplane_server.durability.verify": "dataplane_server.durability.verify",
    "dataplane_server.replaying": "dataplane_server.replaying.__main__",
}
"""Where `main` is of a command, or of a module that `python -m` runs."""
_PRELOADED = (*_MODULES.values(), "dataplane_client.cli._app", "dataplane_server.replaying.served")
_WITH_TENSORS = {"bench", "export", "import"}
"""Commands of `dataplane` that import torch."""
_LONGEST_REQUEST = 1 << 17
_PR_SET_PDEATHSIG = 1


class _Request(NamedTuple):
    """prepare: module, function and arguments of what the process and its helpers call first; empty for nothing."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: tuple[int, int]
    prepare: list[Any]
    outlives: bool


class Forked:
    """A forked command: what a `subprocess.Popen` is, as far as tests and commands need it."""

    def __init__(
        self,
        zygote: socket.socket,
        words: list[str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        encoding: str | None = None,
        env: Mapping[str, str] | None = None,
        prepare: Sequence[Any] = (),
        outlives: bool = False,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        request = _Request(words, environment, str(Path.cwd()), limits, list(prepare), outlives)
        self.args = words
        self.returncode: int | None = None
        coding = encoding or ("utf-8" if text else None)
        with contextlib.ExitStack() as theirs:
            ends = [_ends(stream, number, theirs, coding) for number, stream in enumerate((stdin, stdout, stderr))]
            self.stdin, self.stdout, self.stderr = (mine for _, mine in ends)
            reading, writing = os.pipe()
            theirs.callback(os.close, writing)
            self._said = os.fdopen(reading, "rb", 0)
            handles = [*(end for end, _ in ends), writing]
            socket.send_fds(zygote, [json.dumps(request).encode()], handles)
        self.pid = int(self._said.readline())

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, or a signal's number, negative; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ending = select.poll()  # select takes no descriptor above 1,023
            ending.register(self._said, select.POLLIN)
            if not ending.poll(None if timeout is None else timeout * 1e3):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._said.readline() or -signal.SIGKILL)  # nothing: its zygote was killed
            self._said.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ends(
    stream: int | IO[Any] | None, number: int, theirs: contextlib.ExitStack, coding: str | None
) -> tuple[int, IO[Any] | None]:
    """Of a stream: the descriptor for the command, and what this process has of a pipe."""
    if stream is None:
        return number, None
    if stream == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, null)
        return null, None
    if stream != subprocess.PIPE:
        return stream if isinstance(stream, int) else stream.fileno(), None
    ends = os.pipe()
    end, own = ends if number == 0 else ends[::-1]
    theirs.callback(os.close, end)
    raw = io.FileIO(own, "w" if number == 0 else "r")
    pipe: Any = io.BufferedWriter(raw) if number == 0 else io.BufferedReader(raw)
    return end, pipe if coding is None else io.TextIOWrapper(pipe, coding)


@functools.cache
def _zygotes() -> tuple[socket.socket, itertools.cycle[socket.socket]]:
    """The first of this process, which is to import torch, and all in turn. They end with it."""
    zygotes = [_new_zygote(seed) for seed in ("1", "2")]
    return zygotes[0], itertools.cycle(zygotes)


def _new_zygote(hash_seed: str) -> socket.socket:
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.commands", str(its.fileno())],
            cwd=_ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


def begin(words: Sequence[str | Path], **options: Any) -> Forked:
    """Start a command. Options are those of `Forked`."""
    if words[0] != sys.executable and (name := _name(words)) not in _MODULES:
        raise ValueError(f"{name} is none of {', '.join(_MODULES)}")
    command = [str(word) for word in words]
    first, turns = _zygotes()
    return Forked(first if _has_tensors(command) else next(turns), command, **options)


def run(words: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it wrote and its exit code."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with begin(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **options) as process:
            try:
                process.wait(300.0)
            finally:
                process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(process.args, process.wait(), out.read(), err.read())


def _name(words: Sequence[str | Path]) -> str:
    return str(words[2]) if words[1:2] == ["-m"] else Path(words[0]).name


def _has_tensors(words: Sequence[str]) -> bool:
    name = _name(words)
    return name not in _MODULES or (name == "dataplane" and not _WITH_TENSORS.isdisjoint(words[1:2]))


def _arguments(words: list[str]) -> list[str]:
    if words[1:2] in (["-m"], ["-c"]):
        return [words[0], *words[3:]]
    return words[1:] if words[0] == sys.executable else words


def _main(words: Sequence[str]) -> Callable[[], object]:
    """What a command calls, or what runs a script."""
    name = _name(words)
    if name in _MODULES:
        main: Callable[[], object] = importlib.import_module(_MODULES[name]).main
        return main
    if words[1] == "-m":
        return functools.partial(runpy.run_module, name, run_name="__main__")
    if words[1] == "-c":
        return functools.partial(exec, words[2], {"__name__": "__main__"})
    sys.path.insert(0, str(Path(words[1]).parent))
    return functools.partial(runpy.run_path, words[1], run_name="__main__")


def _next(requests: socket.socket) -> _Request:
    """Fork a process for each request, and return only there. The zygote itself exits once its socket is closed."""
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    while True:
        said, handles, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, 4)
        if not said:
            os._exit(0)
        request = _Request(*json.loads(said))
        if _has_tensors(request.words) and "torch" not in sys.modules:
            importlib.import_module("dataplane_client.client")
            gc.freeze()
        if os.fork() == 0:
            break
        for handle in handles:
            os.close(handle)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _become(request, handles)
    return request


def _become(request: _Request, handles: list[int]) -> None:
    """Fork once more: the parent waits for the child and reports its exit code; only the child returns."""
    *streams, told = handles
    _end_with_parent(request)
    process = os.fork()
    if process:
        for handle in streams:
            os.close(handle)
        with contextlib.suppress(OSError):  # whoever began the command has ended
            os.write(told, b"%d\n" % process)
            os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        os._exit(0)
    _end_with_parent(request)
    os.close(told)
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
        os.close(handle)
    reading, *writing = (io.FileIO(number, mode, closefd=False) for number, mode in enumerate("rww"))
    out, err = map(io.BufferedWriter, writing)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(reading), "utf-8")
    sys.stdout = io.TextIOWrapper(out, "utf-8", line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(err, "utf-8", "backslashreplace", line_buffering=True)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    resource.setrlimit(resource.RLIMIT_NOFILE, request.descriptors)
    sys.argv = request.words[
        0 if request.words[0] != sys.executable else 2 if request.words[1] in {"-c", "-m"} else 1 :
    ]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_with_parent(request: _Request) -> None:
    if not request.outlives:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _starting(helpers: socket.socket, prepare: list[Any]) -> Callable[..., Any]:
    """What `subprocess.Popen` is to a forked command."""
    original = subprocess.Popen

    def start(words: Sequence[str], **options: Any) -> Any:
        if _name(words) in _MODULES:
            options.pop("start_new_session", None)  # signals go to single processes
            return Forked(helpers, list(words), prepare=prepare, outlives=True, **options)
        return original(words, **options)

    return start


def _process(requests: socket.socket) -> Callable[[], object]:
    """Be a zygote. Returns in each process that it forks, or that a zygote of these forks: what that is to run."""
    while True:
        request = _next(requests)
        if request.outlives:
            break
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            its.close()
            setattr(subprocess, "Popen", _starting(mine, request.prepare))  # noqa: B010  # mypy allows no other way
            break
        mine.close()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(null, number)
        os.close(null)
        requests = its
    if request.prepare:
        module, function, *arguments = request.prepare
        getattr(importlib.import_module(module), function)(_name(request.words), *arguments)
    return _main(request.words)


if __name__ == "__main__":
    for preloaded in _PRELOADED:
        importlib.import_module(preloaded)
    gc.freeze()
    ended = _process(socket.socket(fileno=int(sys.argv[1])))()
    sys.exit(ended if isinstance(ended, int) else None)
