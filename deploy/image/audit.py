"""Ask pip-audit whether the pinned requirements have known vulnerabilities.

Usage: audit.py PIP_AUDIT REQUIREMENTS... One line tells of each file, and one of each vulnerable package. Exit code 0:
every package was looked up, and none is vulnerable; 1: some are; 3: some could not be looked up in the advisories of
PyPI or OSV, so nothing is known of them. pip-audit alone ends with 0 where the index has no advisories. It installs
nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SERVICES = ("pypi", "osv")
CLEAN, VULNERABLE, UNKNOWN = 0, 1, 3


def main() -> int:
    pip_audit, *files = sys.argv[1:]
    codes = {audit(pip_audit, file) for file in files}
    return next(code for code in (VULNERABLE, UNKNOWN, CLEAN) if code in codes)


def audit(pip_audit: str, file: str) -> int:
    problems = []
    for service in SERVICES:
        packages, problem = ask(pip_audit, service, file)
        if packages:
            return judge(file, packages)
        problems.append(f"{service}: {problem}")
    tell(f"{file}: not audited, no advisories can be had ({'; '.join(problems)})")
    return UNKNOWN


def ask(pip_audit: str, service: str, file: str) -> tuple[list[dict[str, Any]], str]:
    """What pip-audit says of each package, or nothing and why."""
    command = [pip_audit, "--vulnerability-service", service, "--requirement", file, "--no-deps", "--disable-pip"]
    options = ["--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)  # noqa: S603
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return [], (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1].partition("(")[0]
    known = any("vulns" in package for package in packages)
    return (packages, "") if known else ([], f"none of {len(packages)} packages found")


def judge(file: str, packages: list[dict[str, Any]]) -> int:
    vulnerable = [package for package in packages if package.get("vulns")]
    unknown = [package["name"] for package in packages if "vulns" not in package]
    for package in vulnerable:
        tell(f"{file}: {package['name']} {package['version']}: {', '.join(map(describe, package['vulns']))}")
    not_found = f", not found: {', '.join(unknown)}" if unknown else ""
    tell(f"{file}: {len(packages)} packages, {len(vulnerable)} vulnerable{not_found}")
    return VULNERABLE if vulnerable else UNKNOWN if unknown else CLEAN


def tell(line: str) -> None:
    print(line)  # noqa: T201


def describe(vulnerability: dict[str, Any]) -> str:
    return f"{vulnerability['id']} (fixed in {', '.join(vulnerability['fix_versions']) or 'no version'})"


if __name__ == "__main__":
    sys.exit(main())
