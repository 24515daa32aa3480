"""Environments of the peers: one for each, made with pip, cached, and rebuilt if its requirements change.

Torch is installed first and named again with the rest, so that no other package brings another torch.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_INSTALL_S = 900.0


class NotInstalledError(RuntimeError):
    """An environment could not be made; the message is one line."""


@dataclass(frozen=True)
class Peer:
    """The requirements of a peer. with_ours: also install torch and this project's client, so that both pad alike.
    with_torch: also install torch. alone: installed last, without what they require themselves.
    """

    name: str
    requirements: tuple[str, ...]
    with_ours: bool = False
    with_torch: bool = False
    alone: tuple[str, ...] = ()


TRANSFER_QUEUE = Peer("transfer-queue", ("TransferQueue==0.1.11", "ray==2.60.0"), with_ours=True)
ARROW_FLIGHT = Peer("arrow-flight", ("pyarrow==26.0.1", "numpy>=2,<2.5"))
# Only what `verl.protocol` imports: verl itself requires trainers and engines too.
VERL = Peer(
    "verl",
    ("tensordict==0.10.0", "ray==2.60.0", "numpy>=2,<2.5", "omegaconf>=2.3", "transformers>=5.9,<5.11"),
    with_torch=True,
    alone=("verl==0.9.1",),
)
# The libraries of AReaL and prime-rl, whose transports `peers.areal_store` and `peers.prime_rl` re-create.
RE_CREATED = Peer(
    "re-created",
    (
        "aiohttp==3.14.5",
        "flask>=3.1,<4",
        "msgspec>=0.20,<1",
        "numpy>=2,<2.5",
        "orjson>=3.11,<4",
        "pydantic>=2.12,<3",
        "pyzmq>=27,<28",
        "tensordict==0.15.3",
    ),
    with_torch=True,
)


def environment(peer: Peer, torch: str) -> Path:
    """The interpreter of a peer's environment; makes the environment if it is absent. torch: the build to install.

    Raises NotInstalledError.
    """
    folder = _ROOT / f".venv-bench-{peer.name}"
    python, mark = folder / "bin" / "python", folder / ".installed"
    named = torch if peer.with_ours or peer.with_torch else ""
    wanted = "\n".join((*peer.requirements, *peer.alone, named))
    if mark.is_file() and mark.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    ours = ("--editable", str(_ROOT)) if peer.with_ours else ()
    if named:
        _pip(python, named)
        _pip(python, named, *peer.requirements, *ours)
    else:
        _pip(python, *peer.requirements)
    if peer.alone:
        _pip(python, "--no-deps", *peer.alone)
    mark.write_text(wanted)
    return python


def _pip(python: Path, *arguments: str) -> None:
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"{' '.join(command[1:4])}: not finished within {_INSTALL_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()
        raise NotInstalledError(said[-1] if said else f"{' '.join(command[1:4])} failed") from None
