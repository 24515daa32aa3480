"""No container has a right that it does not need."""

from __future__ import annotations

import pytest
from tests.deploy.kubernetes.manifests import Container, containers, each_overlay, of_kind, pods

ROOT = {"daemonset": ["socket-directory"]}
"""The containers that run as root, and why they must stands beside them."""


@each_overlay
def test_every_container_is_an_ordinary_user_without_capabilities_on_a_read_only_file_system(overlay: str) -> None:
    for container in containers(overlay):
        if container.name not in ROOT.get(overlay, ()):
            _check_restricted(container)


def _check_restricted(container: Container) -> None:
    rights = container.rights
    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] > 0
    assert rights["runAsGroup"] > 0
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize(("overlay", "names"), ROOT.items())
def test_what_runs_as_root_may_give_away_a_directory_and_ends(overlay: str, names: list[str]) -> None:
    for container in (one for one in containers(overlay) if one.name in names):
        assert container.fields in container.pod.spec["initContainers"]
        assert "restartPolicy" not in container.fields
        assert container.rights["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        assert container.rights["readOnlyRootFilesystem"] is True


@each_overlay
def test_no_pod_has_a_token_of_the_cluster_or_a_namespace_of_the_host(overlay: str) -> None:
    for pod in pods(overlay):
        assert pod.spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & pod.spec.keys()


@each_overlay
def test_the_namespace_forbids_what_its_pods_do_not_need(overlay: str) -> None:
    (namespace,) = of_kind(overlay, "Namespace")
    volumes = [volume for pod in pods(overlay) for volume in pod.spec.get("volumes", ())]
    level = "privileged" if any("hostPath" in volume for volume in volumes) else "restricted"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level


@each_overlay
def test_every_volume_is_mounted_and_every_mount_has_a_volume(overlay: str) -> None:
    for pod in pods(overlay):
        mounts = {mount["name"] for container in pod.containers for mount in container.fields.get("volumeMounts", ())}
        assert {volume["name"] for volume in pod.volumes} == mounts
