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
def test_every_stage_has_a_name_and_instructions_that_exist(image: str) -> None:
    assert [stage.name for stage in _stages(image)] == ["build", image]
    assert {name for stage in _stages(image) for name, _ in stage.instructions} <= KNOWN


@each_image
def test_a_stage_begins_with_nothing_or_with_an_image_whose_digest_the_build_must_be_told(image: str) -> None:
    text = DOCKERFILES[image].read_text()
    for stage in _stages(image):
        if stage.base != "scratch":
            found = re.fullmatch(r"([a-z]+:[a-z0-9.-]*bookworm[a-z-]*)@\$\{([A-Z]+_DIGEST)\}", stage.base)
            assert found
            assert re.search(rf"^ARG {found[2]}$", text, re.MULTILINE), "a default would be used unseen"
            assert f"imagetools inspect {found[1]}" in text
            assert f"--build-arg {found[2]}=" in text


@each_image
def test_what_is_copied_is_in_the_repository_and_not_kept_from_the_builder(image: str) -> None:
    copied = [path for stage in _stages(image) for value in stage.all("COPY") for path in _sources(value)]
    assert copied
    for path in copied:
        assert (REPOSITORY / path).exists(), path
        assert _sent_to_the_builder(path), f"{path}: .dockerignore keeps it back"


@pytest.mark.parametrize(
    ("path", "sent"),
    [("proto/rl_dataplane/v1/frames.py", True), (".git/HEAD", False), (".venv/bin/python", False), ("tests", False)],
)
def test_the_builder_is_sent_sources_and_nothing_else(path: str, sent: bool) -> None:
    assert _sent_to_the_builder(path) == sent


@each_image
def test_what_comes_from_another_stage_was_made_there(image: str) -> None:
    first, last = _stages(image)
    for value in last.all("COPY"):
        if value.startswith("--from="):
            stage, path = value.removeprefix("--from=").split()[:2]
            assert stage == first.name
            assert any(path in command for command in first.all("RUN"))


@each_image
def test_the_compiler_and_the_package_index_stay_in_the_first_stage(image: str) -> None:
    for command in _stages(image)[-1].all("RUN"):
        assert not re.search(r"\b(apt|apt-get|pip|gcc|curl|wget)\b", command)


@each_image
def test_it_runs_as_a_user_with_a_number_that_is_not_root(image: str) -> None:
    user, group = _stages(image)[-1].one("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0


@each_image
def test_it_is_stopped_by_the_signal_that_drains_and_started_without_a_shell(image: str) -> None:
    last = _stages(image)[-1]
    assert last.one("STOPSIGNAL") == "SIGTERM"
    assert last.words("ENTRYPOINT")[0].startswith("/")
    assert last.words("CMD")


@each_image
def test_labels_tell_title_licence_and_the_version_of_the_distribution(image: str) -> None:
    labels = _stages(image)[-1].pairs("LABEL")
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert labels["org.opencontainers.image.version"] == version[1]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.title"].startswith("RL Data Plane")


@each_image
def test_pip_installs_only_what_has_a_hash_except_torch_and_our_wheel(image: str) -> None:
    for command in (part for run in _stages(image)[0].all("RUN") for part in run.split(" && ")):
        if "pip install" in command:
            assert re.search(r'--require-hashes|"\$TORCH"$|--no-deps /opt/wheels/', command), command


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
