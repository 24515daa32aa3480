"""The client's tests beside other versions: `python scripts/test_matrix.py [--torch REQUIREMENT] [NAME ...]`.

Each environment is a folder .venv-matrix-NAME, which a later run uses again. A table at the end lists the versions and
the outcome of each. The exit code is 1 if a test fails. An environment that cannot be had here, because it lacks an
interpreter, disk space or a package, is listed with the reason and not as passed.

Interpreters are looked up as python3.X on the PATH. Under pyenv, PYENV_VERSION=3.11.7:3.10.13:... puts several there.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = (  # without the test of a script, which needs the formatter
    *("tests/client", "--ignore=tests/client/test_unasync.py"),
    *(f"integrations/dataplane_{name}/tests" for name in ("rollout", "training_figures")),
    *(f"tests/integration/test_{name}.py" for name in ("round_trip", "claims")),
    "tests/semantics/test_groups.py",
)
SHOWN = ("torch", "tensordict", "protobuf", "grpcio", "numpy", "wandb", "mlflow")
CUDA_BUILD_BYTES = 10 << 30
"""Free disk space that an environment with a CUDA build of torch needs; a CPU build exists for few interpreters."""


@dataclass(frozen=True)
class Environment:
    """python: its version, or "" for this interpreter's. packages: requirements beside our own, resolved with them.
    afterwards: packages installed over the resolved ones, as a user of the environment might. torch: "" for --torch.
    oldest: each dependency but torch at the lowest version that pyproject.toml allows.
    """

    name: str
    python: str = ""
    packages: tuple[str, ...] = ()
    afterwards: tuple[str, ...] = ()
    torch: str = ""
    oldest: bool = False


ENVIRONMENTS = (
    Environment("tensordict-0.10.0", packages=("tensordict==0.10.0",)),
    Environment("tensordict-0.12.2", packages=("tensordict==0.12.2",)),
    Environment("newest"),
    Environment("protobuf-6.33", packages=("wandb", "mlflow"), afterwards=("protobuf==6.33.*",)),
    Environment("oldest", oldest=True),
    Environment("python-3.10", "3.10", torch="torch==2.9.0", oldest=True),
    Environment("python-3.12", "3.12"),
    Environment("python-3.13", "3.13"),
)


@dataclass(frozen=True)
class Outcome:
    name: str
    versions: str = ""
    result: str = ""
    failed: bool = False


class NotHereError(Exception):
    """The environment cannot be had on this machine."""


def main() -> int:
    names = [environment.name for environment in ENVIRONMENTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="torch", help="the build of torch, unless an environment needs another one")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)} (default: all)")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where the environments are (default: %(default)s)")
    flags = parser.parse_args()
    if unknown := sorted(set(flags.names) - set(names)):
        parser.error(f"no environment {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = [environment for environment in ENVIRONMENTS if environment.name in (flags.names or names)]
    outcomes = [outcome(replace(each, torch=each.torch or flags.torch), flags.folder) for each in chosen]
    show(outcomes)
    return int(any(outcome.failed for outcome in outcomes))


def outcome(environment: Environment, folder: Path) -> Outcome:
    """Build the environment, or bring it up to date, and run the suite in it."""
    print(f"\n== {environment.name}", flush=True)
    try:
        python = build(environment, folder / f".venv-matrix-{environment.name}")
    except NotHereError as error:
        return Outcome(environment.name, result=f"not here: {error}")
    began = time.monotonic()
    tests = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    print(tests.stdout, flush=True)
    last = tests.stdout.strip().splitlines()[-1] if tests.stdout.strip() else ""
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", last)
    result = ", ".join(counts) or f"pytest ended with {tests.returncode}"
    result += f", {time.monotonic() - began:.0f} s"
    return Outcome(environment.name, versions(python), result, failed=tests.returncode != 0)


# -- building ----------------------------------------------------------------------------------------------------------


def build(environment: Environment, folder: Path) -> Path:
    """The environment's interpreter, with everything installed. Raises NotHereError."""
    python, stamp = folder / "bin" / "python", folder / "recipe"
    recipe = f"{environment}\n{(ROOT / 'pyproject.toml').read_text()}"
    if stamp.exists() and stamp.read_text() == recipe:
        return python
    pip = (str(python), "-m", "pip", "install", "--quiet", "--no-compile")
    if not stamp.exists():  # it may be half built
        run(interpreter(environment.python), "-m", "venv", "--clear", str(folder))
        run(*pip, "--upgrade", "pip>=25.1")
    install_torch(pip, environment.torch)
    floors = list(lower_bounds()) if environment.oldest else []
    run(*pip, "--group", "client-test", "--editable", ".[server,metrics,tracing]", *environment.packages, *floors)
    if environment.afterwards:
        run(*pip, *environment.afterwards)  # pip only warns of packages that ask for another version
    stamp.write_text(recipe)
    return python


def interpreter(version: str) -> str:
    if version in ("", "{}.{}".format(*sys.version_info)):
        return sys.executable
    name = f"python{version}"
    if shutil.which(name) is None:
        raise NotHereError(f"no {name} on the PATH")
    run(name, "--version")
    return name


def install_torch(pip: tuple[str, ...], torch: str) -> None:
    """First, since whatever asks for torch takes the registry's newest build."""
    try:
        run(*pip, "--no-index", "--no-deps", torch)  # installed already, or a build that lies on this machine
    except NotHereError:
        free = shutil.disk_usage(ROOT).free
        if free < CUDA_BUILD_BYTES:
            raise NotHereError(
                f"{free >> 30} GiB of disk space are free; {torch} may bring CUDA and take {CUDA_BUILD_BYTES >> 30} GiB"
            ) from None
        run(*pip, torch)


def lower_bounds() -> Iterator[str]:
    """What `dependencies` and the extras ask for that the tests use, beside torch, at the lowest version allowed."""
    text = (ROOT / "pyproject.toml").read_text()
    for section in ("dependencies", "server", "metrics", "tracing", "parquet"):
        (listed,) = re.findall(rf"^{section} = \[(.*?)\](?: #.*?)?$", text, re.MULTILINE | re.DOTALL)
        found = re.findall(r'"([\w-]+)>=([\d.]+)', listed)
        yield from (f"{name}=={version}.*" for name, version in found if name != "torch")


def run(*command: str) -> None:
    """Raises NotHereError with the last line that the command wrote."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        errors = [line for line in lines if "ERROR" in line] or lines
        raise NotHereError(f"{' '.join(command[:4])}: {errors[-1]}")


# -- the table ---------------------------------------------------------------------------------------------------------


def versions(python: Path) -> str:
    code = (
        "import sys, importlib.metadata as m\n"
        "print('python', sys.version.split()[0], end='')\n"
        f"for name in {SHOWN}:\n"
        "    found = list(m.distributions(name=name))\n"
        "    found and print(',', name, found[0].version, end='')\n"
    )
    return subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout


def show(outcomes: list[Outcome]) -> None:
    print()
    for each in outcomes:
        print(f"{each.name:18} {each.result}")
        if each.versions:
            print(f"{'':18} {each.versions}")


if __name__ == "__main__":
    raise SystemExit(main())
