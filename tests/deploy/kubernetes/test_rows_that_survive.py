"""Rows outlive their server: the directory is on a volume with room, which is paid for, and a killed server goes on."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path, PurePosixPath

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.deploy.kubernetes.manifests import (
    KUBERNETES,
    PROBES,
    Manifest,
    config_of,
    containers,
    each_overlay,
    server_of,
)
from tests.integration.command.conftest import Command

from dataplane_client import Credentials, connect
from dataplane_server.cli import parse_size

MIB = 1 << 20


def _volume(overlay: str, folder: Path | None) -> Manifest:
    return dict(server_of(overlay).mount_of(f"{folder}/file")["volume"])


def _room(volume: Manifest) -> int:
    size = volume["claim"]["resources"]["requests"]["storage"] if "claim" in volume else volume["emptyDir"]["sizeLimit"]
    return parse_size(size + "B")


@each_overlay
def test_rows_are_on_a_volume_of_the_server_alone_that_goes_or_stays_with_the_machines_memory(overlay: str) -> None:
    config, server = config_of(overlay), server_of(overlay)
    volume = _volume(overlay, config.data_dir)
    mounts = [mount["name"] for container in containers(overlay) for mount in container.fields.get("volumeMounts", ())]
    assert mounts.count(volume["name"]) == 1
    assert server.pod.spec["securityContext"]["fsGroup"] == server.rights["runAsGroup"], "so that it may write there"
    in_memory = volume.get("emptyDir", {}).get("medium") == "Memory"
    assert in_memory == (config.durability == "process"), "it would refuse a directory that a reboot did not empty"


@each_overlay
def test_the_volume_and_the_memory_limit_cover_what_the_server_keeps(overlay: str) -> None:
    """The formulas of docs/operations.md; with `disk` also for a restore."""
    config, server = config_of(overlay), server_of(overlay)
    values, beside = config.limits.memory_bytes, config.limits.bookkeeping_bytes
    volume = _volume(overlay, config.data_dir)
    restored = values + beside // 2 if config.durability == "disk" else 0
    kept = values + beside + config.log_history_bytes + 512 * MIB + restored
    assert kept <= _room(volume) <= 1.2 * kept
    streams = 0 if config.share_memory else 64  # puts and reads over gRPC at a time
    needed = (values if restored else _room(volume)) + 2 * beside + 576 * MIB + 9 * MIB * streams
    assert needed <= server.memory("limits") <= needed + 1024 * MIB
    assert server.memory("requests") == server.memory("limits"), "the arena fills up: less would be taken from others"
    assert "cpu" not in server.fields["resources"]["limits"], "a throttled event loop is late for everybody"


@each_overlay
def test_snapshots_cannot_fill_the_volume_of_the_rows(overlay: str) -> None:
    config = config_of(overlay)
    assert config.snapshot_dir is not None
    assert config.data_dir not in (config.snapshot_dir, *config.snapshot_dir.parents)
    if overlay == "statefulset":  # elsewhere the root is read-only, so they are refused
        each = config.limits.memory_bytes + config.limits.bookkeeping_bytes // 2
        assert _room(_volume(overlay, config.snapshot_dir)) >= 2 * each


@pytest.mark.parametrize(
    "overlay", ["statefulset", *(pytest.param(name, marks=pytest.mark.long) for name in ("sidecar", "daemonset"))]
)
def test_a_server_with_these_arguments_goes_on_with_its_rows_and_answers_what_the_probes_ask(
    overlay: str, tmp_path: Path
) -> None:
    credentials = made_secrets(tmp_path) if config_of(overlay).tls is not None else None
    arguments = [_here(argument, tmp_path) for argument in server_of(overlay).fields["args"]]
    with contextlib.closing(Command(arguments, tmp_path / "first.log")) as first:
        with connect(first.addresses[0], credentials=credentials) as client:
            client.register_partition("p", ["x"], 0, ["train"])
            client.put_samples(["a"], "p", {"x": [7]})
        first.end(signal.SIGKILL)
    with contextlib.closing(Command(arguments, tmp_path / "second.log")) as second:
        with connect(second.addresses[0], credentials=credentials) as client:
            assert client.get_samples(["a"], "p", ["x"])["x"].tolist() == [7]
        with grpc.insecure_channel(second.health) as channel:
            for probe in PROBES:
                request = health_pb2.HealthCheckRequest(service=server_of(overlay).fields[probe]["grpc"]["service"])
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=120)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING


def made_secrets(folder: Path) -> Credentials:
    """Run the overlay's script with a kubectl that puts the files of Secrets into a folder. Those of the server are
    then where `_here` looks for them. Returns what the trainer's pod gets.
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so the script cannot make certificates")
    tools, secrets = folder / "tools", folder / "secrets"
    tools.mkdir()
    (tools / "kubectl").write_text(KUBECTL)
    (tools / "kubectl").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SECRETS": str(secrets)}
    script = KUBERNETES / "overlays" / "statefulset" / "secrets.sh"
    subprocess.run([script, "rl-dataplane"], env=environment, check=True, timeout=300)
    for name in ("dataplane-tls/tls.crt", "dataplane-tls/tls.key", "dataplane-access/access.json"):
        shutil.copy(secrets / name, folder)
    trainer = secrets / "dataplane-trainer"
    assert sorted(path.name for path in trainer.iterdir()) == ["ca.crt", "token"]
    name = "dataplane-server-0.dataplane"
    return Credentials(ca=str(trainer / "ca.crt"), token_file=str(trainer / "token"), server_name=name)


KUBECTL = """#!/usr/bin/env bash
# kubectl -n NAMESPACE create secret generic NAME --from-file=[KEY=]FILE ..., and kubectl apply -f -
[ "$1" = apply ] && exec cat >/dev/null
mkdir -p "$SECRETS/$6"
for argument in "${@:7}"; do
	case $argument in
	--from-file=*=*) key=${argument#--from-file=}; cp "${key#*=}" "$SECRETS/$6/${key%%=*}" ;;
	--from-file=*) cp "${argument#--from-file=}" "$SECRETS/$6/" ;;
	esac
done
"""


def _here(argument: str, folder: Path) -> str:
    """The argument with a path, a port or a size that this machine has."""
    flag, _, value = argument.partition("=")
    if "/" in value:
        return f"{flag}={'unix://' if value.startswith('unix:') else ''}{folder}/{PurePosixPath(value).name}"
    return re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", "--memory=16MiB" if flag == "--memory" else argument)
