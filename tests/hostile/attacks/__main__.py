"""Every attack that is known, one after the other: does the server stay up, its memory bounded, its clients served?

    python -m tests.hostile.attacks --seconds 5 [ATTACK ...]

Each attack meets a fresh server with 64 MiB for values, and a probe (see `probe`) at work. How long the probe's calls
take under attack is compared with how long they take "alone": beside a process that only spins. That process and the
attackers have the lowest priority (nice 19). Without the spinner the figures would tell of the cores, which an attacker
shares with the server and the probe, and not of the server.

The exit status is 1 unless under every attack the server stays up, serves a new client over shared memory afterwards
and logs less than a MiB; its own memory grows by no more than the attack's bound; the probe's p99 is at most three
times that alone, and no call of it fails, except where the attack may have that (see `table`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.hostile.attacks.measuring import MIB, Outcome, outcome_of
from tests.hostile.attacks.probe import p99_ms
from tests.hostile.attacks.table import ATTACKS


def row_of(name: str, found: Outcome, alone_ms: float) -> list[str]:
    during = found.during
    worst, health, healthz = (max(times, default=0.0) * 1e3 for times in (during.calls, during.health, during.healthz))
    accepted = f", at most {found.attack.p99_ms:g} ms" if found.attack.p99_ms else ""
    return [
        name,
        f"{found.attack.sent} (x {found.steps:,})",
        f"{len(during.calls):,}",
        f"{alone_ms:.1f} -> {during.p99_ms():.1f} ({found.times(alone_ms):.1f} x{accepted})",
        f"{worst:.0f}",
        f"{health:.0f}, {healthz:.0f}",
        f"{found.memory[0] // MIB} / {found.memory[1] // MIB}",
        "; ".join(found.wrong(alone_ms)) or "yes",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of: {', '.join(ATTACKS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack (default: %(default)g)")
    given = parser.parse_args()
    outcomes: dict[str, Outcome] = {}
    for name in given.attacks or ATTACKS:
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            found = outcomes[name] = outcome_of(name, given.seconds, Path(folder))
        sys.stderr.write(" | ".join(row_of(name, found, found.alone.p99_ms())) + "\n")
    alone_ms = p99_ms([call for found in outcomes.values() for call in found.alone.calls])
    heads = ("attack", "what was sent", "calls", "p99 ms alone -> during", "worst ms", "health, /healthz worst ms")
    table = Table(*heads, "own MiB before / peak", "up and well", box=None, padding=(0, 2, 0, 0))
    for name, found in outcomes.items():
        table.add_row(*row_of(name, found, alone_ms))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return int(any(found.wrong(alone_ms) for found in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
