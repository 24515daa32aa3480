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
    """The requirements of a peer. with_ours: also install torch and this project's client, so that both pad alike."""

    name: str
    requirements: tuple[str, ...]
    with_ours: bool


TRANSFER_QUEUE = Peer("transfer-queue", ("TransferQueue==0.1.11", "ray==2.60.0"), with_ours=True)
ARROW_FLIGHT = Peer("arrow-flight", ("pyarrow==26.0.1", "numpy>=2,<2.5"), with_ours=False)


def environment(peer: Peer, torch: str) -> Path:
    """The interpreter of a peer's environment; makes the environment if it is absent. torch: the build to install.

    Raises NotInstalledError.
    """
    folder = _ROOT / f".venv-bench-{peer.name}"
    python, mark = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join((*peer.requirements, torch if peer.with_ours else ""))
    if mark.is_file() and mark.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    if peer.with_ours:
        _pip(python, torch)
        _pip(python, torch, *peer.requirements, "--editable", str(_ROOT))
    else:
        _pip(python, *peer.requirements)
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
