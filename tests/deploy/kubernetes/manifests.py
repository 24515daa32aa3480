"""The overlays as a cluster would get them: rendered by kustomize, and looked at as pods and containers."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from dataplane_server.cli import _config, _parser, parse_size
from dataplane_server.config import ServerConfig

Manifest = dict[str, Any]

KUBERNETES = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
OVERLAYS = ("sidecar", "daemonset", "statefulset")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@functools.cache
def rendered(overlay: str) -> tuple[Manifest, ...]:
    """Skips the test where neither kustomize nor kubectl is installed."""
    command = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    if shutil.which(command[0]) is None:
        pytest.skip("neither kustomize nor kubectl is installed, so the overlays cannot be rendered")
    done = subprocess.run([*command, KUBERNETES / "overlays" / overlay], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, kind: str) -> list[Manifest]:
    return [manifest for manifest in rendered(overlay) if manifest["kind"] == kind]


def name_of(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


@dataclass(frozen=True)
class Container:
    """One container; `pod` is the template that it stands in."""

    fields: Manifest
    pod: Pod

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    @property
    def rights(self) -> Manifest:
        """The security context, with the pod's where the container says nothing."""
        return {**self.pod.spec["securityContext"], **self.fields["securityContext"]}

    @property
    def groups(self) -> set[int]:
        pod = self.pod.spec["securityContext"]
        shared = {pod["fsGroup"]} if "fsGroup" in pod else set()
        return {self.rights["runAsGroup"], *pod.get("supplementalGroups", ())} | shared

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.fields.get("ports", ())}

    def memory(self, kind: str) -> int:
        """Bytes of the `requests` or `limits` of memory."""
        return parse_size(self.fields["resources"][kind]["memory"] + "B")

    def mount_of(self, path: str) -> Manifest:
        """The mount in whose directory a file lies, beside what its volume is."""
        folder = str(PurePosixPath(path).parent)
        mount = next(mount for mount in self.fields["volumeMounts"] if mount["mountPath"] == folder)
        volume = next(volume for volume in self.pod.volumes if volume["name"] == mount["name"])
        return {"mount": mount, "volume": volume}


@dataclass(frozen=True)
class Pod:
    """The pod template of a workload."""

    workload: Manifest

    @property
    def template(self) -> Manifest:
        template: Manifest = self.workload["spec"]["template"]
        return template

    @property
    def spec(self) -> Manifest:
        spec: Manifest = self.template["spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.template["metadata"]["labels"]
        return labels

    @property
    def volumes(self) -> list[Manifest]:
        claims = self.workload["spec"].get("volumeClaimTemplates", ())
        claimed = [{"name": claim["metadata"]["name"], "claim": claim["spec"]} for claim in claims]
        return [*self.spec.get("volumes", ()), *claimed]

    @property
    def containers(self) -> list[Container]:
        return [Container(fields, self) for fields in (*self.spec.get("initContainers", ()), *self.spec["containers"])]

    def __str__(self) -> str:
        return name_of(self.workload)


def pods(overlay: str) -> list[Pod]:
    return [Pod(manifest) for manifest in rendered(overlay) if "template" in manifest.get("spec", {})]


def containers(overlay: str) -> Iterator[Container]:
    for pod in pods(overlay):
        yield from pod.containers


def server_of(overlay: str) -> Container:
    (server,) = (container for container in containers(overlay) if container.name == "server")
    return server


def trainer_of(overlay: str) -> Container:
    (trainer,) = (container for container in containers(overlay) if container.name == "trainer")
    return trainer


def config_of(overlay: str) -> ServerConfig:
    """What the server makes of its arguments, by its own parser and rules."""
    return _config(_parser().parse_args(server_of(overlay).fields["args"]))


def socket_of(overlay: str) -> str | None:
    """The path of the Unix socket that the server listens at, if it does."""
    paths = [address.removeprefix("unix://") for address in config_of(overlay).listen if address.startswith("unix://")]
    return paths[0] if paths else None


def address_of_trainer(overlay: str) -> str:
    """The server's address that the trainer is told."""
    found = [entry["value"] for entry in trainer_of(overlay).fields["env"] if entry["name"] == "DATAPLANE_SERVER"]
    (address,) = found
    return str(address)
