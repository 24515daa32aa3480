"""What can be known of the images without building them."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.deploy.image.dockerfile import DOCKERFILES, REPOSITORY, Stage, stages

from dataplane_server.cli import _config, _parser

KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "LABEL", "RUN", "STOPSIGNAL", "USER", "WORKDIR"}
each_image = pytest.mark.parametrize("image", DOCKERFILES)


def _stages(image: str) -> list[Stage]:
    return stages(DOCKERFILES[image])


@each_image
def test_stages_begin_with_nothing_or_with_an_image_whose_digest_the_build_must_be_told(image: str) -> None:
    text = DOCKERFILES[image].read_text()
    assert [stage.name for stage in _stages(image)] == ["build", image]
    for stage in _stages(image):
        assert {name for name, _ in stage.instructions} <= KNOWN
        if stage.base != "scratch":
            found = re.fullmatch(r"([a-z]+:[a-z0-9.-]*bookworm[a-z-]*)@\$\{([A-Z]+_DIGEST)\}", stage.base)
            assert found
            assert re.search(rf"^ARG {found[2]}$", text, re.MULTILINE), "a default would be used unseen"
            assert f"imagetools inspect {found[1]}" in text
            assert f"--build-arg {found[2]}=" in text


@each_image
def test_what_is_copied_is_in_the_repository_and_sent_to_the_builder_or_made_in_the_first_stage(image: str) -> None:
    copied = [path for stage in _stages(image) for value in stage.all("COPY") for path in _sources(value)]
    assert copied
    for path in copied:
        assert (REPOSITORY / path).exists(), path
        assert _sent_to_the_builder(path), f"{path}: .dockerignore keeps it back"
    first, last = _stages(image)
    for value in last.all("COPY"):
        if value.startswith("--from="):
            stage, path = value.removeprefix("--from=").split()[:2]
            assert stage == first.name
            assert any(path in command for command in first.all("RUN"))


def test_the_builder_is_sent_sources_and_nothing_else() -> None:
    assert _sent_to_the_builder("proto/rl_dataplane/v1/frames.py")
    assert not any(map(_sent_to_the_builder, (".git/HEAD", ".venv/bin/python", "tests")))


@each_image
def test_what_pip_installs_has_a_hash_but_torch_and_our_wheel_and_no_tool_is_left_in_the_image(image: str) -> None:
    first, last = _stages(image)
    for command in (part for run in first.all("RUN") for part in run.split(" && ")):
        if "pip install" in command:
            assert re.search(r'--require-hashes|"\$TORCH"$|--no-deps /opt/wheels/', command), command
    assert not [run for run in last.all("RUN") if re.search(r"\b(apt|apt-get|pip|gcc|curl|wget)\b", run)]


@each_image
def test_it_is_an_ordinary_user_started_without_a_shell_and_stopped_by_the_signal_that_drains(image: str) -> None:
    last = _stages(image)[-1]
    assert all(int(number) > 0 for number in last.one("USER").split(":"))
    assert last.one("STOPSIGNAL") == "SIGTERM"
    assert last.words("ENTRYPOINT")[0].startswith("/")
    assert last.words("CMD")
    labels = last.pairs("LABEL")
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert labels["org.opencontainers.image.version"] == version[1]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.title"].startswith("RL Data Plane")


def test_the_servers_image_is_made_of_nothing_but_the_recipe() -> None:
    build, server = _stages("server")
    assert server.base == "scratch"
    assert not server.all("RUN")
    assert server.all("COPY") == ["--from=build /image-root /"]
    assert build.all("RUN")[-1] == "deploy/image/build_root.sh /image-root"


def test_the_servers_default_arguments_are_valid_and_open_the_ports_that_are_told() -> None:
    server = _stages("server")[-1]
    config = _config(_parser().parse_args(server.words("CMD")))
    opened = {str(address).rpartition(":")[2] for address in (config.http, config.health)}
    assert opened | {"50051"} == set(server.all("EXPOSE"))
    assert server.pairs("ENV")["DATAPLANE_SERVER"] in config.listen


def _sources(value: str) -> list[str]:
    return [] if value.startswith("--from=") else value.split()[:-1]


def _sent_to_the_builder(path: str) -> bool:
    """The last line that matches the path, or a folder it is in, decides."""
    parts = Path(path).parts
    candidates = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    sent = True
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and any(fnmatch(candidate, pattern) for candidate in candidates):
            sent = line.startswith("!")
    return sent
