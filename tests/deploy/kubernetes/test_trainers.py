"""What the manifests promise a trainer: it reaches the server, may use its socket, and has memory for the arena."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.deploy.kubernetes.manifests import (
    OVERLAYS,
    address_of_trainer,
    config_of,
    each_overlay,
    of_kind,
    server_of,
    socket_of,
    trainer_of,
)

from dataplane_server.cli import parse_size

BESIDE_ONE_SOCKET = pytest.mark.parametrize("overlay", ["sidecar", "daemonset"])


@BESIDE_ONE_SOCKET
def test_the_directory_of_the_socket_is_one_volume_in_both_containers(overlay: str) -> None:
    socket = socket_of(overlay)
    assert socket is not None
    served, used = server_of(overlay).mount_of(socket), trainer_of(overlay).mount_of(socket)
    if overlay == "sidecar":
        assert served["volume"] == used["volume"]
        assert served["volume"]["emptyDir"]["medium"] == "Memory"
    else:
        assert served["volume"]["hostPath"]["path"] == used["volume"]["hostPath"]["path"]
    assert "subPath" not in used["mount"], "a restarted server makes another file, which a mounted file would hide"
    assert used["mount"]["readOnly"]
    assert not served["mount"].get("readOnly", False)


@each_overlay
def test_the_trainer_is_told_where_the_server_listens(overlay: str) -> None:
    address = address_of_trainer(overlay)
    if address.startswith("unix:"):
        assert address in config_of(overlay).listen
        return
    (workload,), (service,) = of_kind(overlay, "StatefulSet"), of_kind(overlay, "Service")
    assert service["spec"]["clusterIP"] == "None", "only a headless service gives each pod a name"
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert workload["spec"]["serviceName"] == name
    assert address == f"{workload['metadata']['name']}-0.{name}:{port}"


@BESIDE_ONE_SOCKET
def test_server_and_trainer_are_different_users_of_one_group_which_the_socket_admits(overlay: str) -> None:
    server, trainer, mode = server_of(overlay), trainer_of(overlay), config_of(overlay).socket_mode
    assert server.rights["runAsUser"] != trainer.rights["runAsUser"]
    assert server.rights["runAsGroup"] in trainer.groups
    assert mode is not None
    assert mode & 0o066 == 0o060, "the group may connect, others may not"


@each_overlay
def test_the_trainer_has_memory_for_itself_since_the_server_allocates_the_pages_that_they_share(overlay: str) -> None:
    trainer = trainer_of(overlay)
    assert config_of(overlay).data_dir is not None
    assert trainer.memory("limits") == trainer.memory("requests")


@each_overlay
def test_what_a_trainer_may_keep_in_memory_backed_volumes_is_within_its_own_memory(overlay: str) -> None:
    trainer = trainer_of(overlay)
    volumes = [volume.get("emptyDir", {}) for volume in trainer.pod.spec["volumes"]]
    sizes = [parse_size(volume["sizeLimit"] + "B") for volume in volumes if volume.get("medium") == "Memory"]
    assert sum(sizes) < trainer.memory("requests")


def test_a_sidecar_is_up_before_its_trainer_and_does_not_keep_the_job_from_completing() -> None:
    server = server_of("sidecar")
    assert server.fields in server.pod.spec["initContainers"]
    assert server.fields["restartPolicy"] == "Always"
    assert server.pod.spec["restartPolicy"] == "Never"
    assert "startupProbe" in server.fields


def test_the_command_of_the_examples_is_one_that_the_trainers_image_has() -> None:
    commands = {tuple(trainer_of(overlay).fields["command"]) for overlay in OVERLAYS}
    ((program, *arguments),) = commands
    assert program == "dataplane"
    main = [sys.executable, "-c", "from dataplane_client.cli import main; main()"]
    done = subprocess.run([*main, *arguments, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
