"""What the overlays say of the server, its clients and the cluster is what these do and need."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

import pytest
import yaml
from tests.deploy.kubernetes.manifests import (
    KUBERNETES,
    PROBES,
    Container,
    address_of_trainer,
    config_of,
    containers,
    each_overlay,
    of_kind,
    pods,
    rendered,
    server_of,
    socket_of,
    trainer_of,
)

from dataplane_server.cli import parse_size
from dataplane_server.config import host_and_port

VERSION = version("rl-dataplane")
SERVER, CLIENT = {"rl-dataplane/server": "true"}, {"rl-dataplane/client": "true"}
ROOT = {"daemonset": ["socket-directory"]}
"""The containers that run as root, and why they must stands beside them."""


# -- the server --------------------------------------------------------------------------------------------------------


@each_overlay
def test_the_ports_of_the_container_are_those_that_the_server_listens_at(overlay: str) -> None:
    config = config_of(overlay)
    listened = [config.http, config.health, *(address for address in config.listen if not address.startswith("unix:"))]
    ports = [host_and_port("", address or "") for address in listened]
    assert sorted(server_of(overlay).ports.values()) == sorted(port for _, port in ports)
    assert {host for host, _ in ports} == {"0.0.0.0"}, "kubelet, Prometheus and clients come to the pod's address"  # noqa: S104


@each_overlay
def test_probes_ask_for_health_in_time_and_a_server_is_not_restarted_while_it_recovers(overlay: str) -> None:
    server, config = server_of(overlay), config_of(overlay)
    asked = {probe: server.fields[probe]["grpc"]["service"] for probe in PROBES}
    assert asked == {"startupProbe": "readiness", "readinessProbe": "readiness", "livenessProbe": "liveness"}
    assert {server.fields[probe]["grpc"]["port"] for probe in PROBES} == {server.ports["health"]}
    assert server.ports["health"] == host_and_port("health", config.health or "")[1]
    after_s = {probe: _patience_s(server, probe) for probe in PROBES}
    assert (after_s["readinessProbe"] <= 15, after_s["livenessProbe"] >= 60) == (True, True)
    reads_values = config.durability == "disk"  # all of them, maybe with 30 MB/s
    assert after_s["startupProbe"] >= (config.limits.memory_bytes / 30e6 if reads_values else 120)


def _patience_s(server: Container, probe: str) -> int:
    fields = server.fields[probe]
    assert fields["timeoutSeconds"] <= fields["periodSeconds"]
    return int(fields["periodSeconds"] * fields["failureThreshold"])


@each_overlay
def test_the_pod_lives_longer_than_its_server_may_drain_which_waits_where_clients_find_it_by_an_endpoint(
    overlay: str,
) -> None:
    server = server_of(overlay)
    slept_s = server.fields.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert server.pod.spec["terminationGracePeriodSeconds"] >= slept_s + config_of(overlay).drain_grace_s + 5
    assert ("lifecycle" in server.fields) == (overlay == "statefulset")


@each_overlay
def test_memory_is_shared_over_a_unix_socket_and_a_port_that_other_pods_reach_has_tls_and_knows_its_callers(
    overlay: str,
) -> None:
    config = config_of(overlay)
    assert config.share_memory == address_of_trainer(overlay).startswith("unix:")
    assert not config.insecure
    reached = [address for address in config.listen if not address.startswith("unix:")]
    assert (len(reached) > 0) == (config.tls is not None) == (config.access is not None)


# -- its clients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", ["sidecar", "daemonset"])
def test_server_and_trainer_are_different_users_of_one_group_that_share_the_sockets_directory(overlay: str) -> None:
    socket, server, trainer = socket_of(overlay), server_of(overlay), trainer_of(overlay)
    assert socket is not None
    served, used = server.mount_of(socket), trainer.mount_of(socket)
    if overlay == "sidecar":
        assert served["volume"] == used["volume"]
        assert served["volume"]["emptyDir"]["medium"] == "Memory"
    else:
        assert served["volume"]["hostPath"]["path"] == used["volume"]["hostPath"]["path"]
    assert "subPath" not in used["mount"], "a restarted server makes another file, which a mounted file would hide"
    assert (used["mount"]["readOnly"], served["mount"].get("readOnly", False)) == (True, False)
    assert server.rights["runAsUser"] != trainer.rights["runAsUser"]
    assert server.rights["runAsGroup"] in trainer.groups
    mode = config_of(overlay).socket_mode
    assert mode is not None
    assert mode & 0o066 == 0o060, "the group may connect, others may not"


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


@each_overlay
def test_the_trainer_has_memory_for_itself_and_its_volumes_since_the_server_allocates_the_pages_that_they_share(
    overlay: str,
) -> None:
    trainer = trainer_of(overlay)
    assert config_of(overlay).data_dir is not None
    assert trainer.memory("limits") == trainer.memory("requests")
    volumes = [volume.get("emptyDir", {}) for volume in trainer.pod.spec["volumes"]]
    sizes = [parse_size(volume["sizeLimit"] + "B") for volume in volumes if volume.get("medium") == "Memory"]
    assert sum(sizes) < trainer.memory("requests")


def test_a_sidecar_is_up_before_its_trainer_and_does_not_keep_the_job_from_completing() -> None:
    server = server_of("sidecar")
    assert server.fields in server.pod.spec["initContainers"]
    assert server.fields["restartPolicy"] == "Always"
    assert server.pod.spec["restartPolicy"] == "Never"
    assert "startupProbe" in server.fields


# -- what selects pods -------------------------------------------------------------------------------------------------


def _selected(overlay: str, labels: dict[str, str]) -> list[str]:
    return [str(pod) for pod in pods(overlay) if labels.items() <= pod.labels.items()]


def _servers(overlay: str) -> list[str]:
    return [str(pod) for pod in pods(overlay) if any(container.name == "server" for container in pod.containers)]


@each_overlay
def test_everything_is_in_the_namespace_that_the_overlay_makes(overlay: str) -> None:
    (namespace,) = of_kind(overlay, "Namespace")
    others = [manifest for manifest in rendered(overlay) if manifest is not namespace]
    assert {one["metadata"]["namespace"] for one in others} == {namespace["metadata"]["name"]}


@each_overlay
def test_labels_services_and_budgets_select_the_pods_with_a_server_and_workloads_their_own(overlay: str) -> None:
    assert _selected(overlay, SERVER) == _servers(overlay)
    for pod in pods(overlay):
        if "selector" in pod.workload["spec"]:
            assert _selected(overlay, pod.workload["spec"]["selector"]["matchLabels"]) == [str(pod)]
    for service in of_kind(overlay, "Service"):
        assert _selected(overlay, service["spec"]["selector"]) == _servers(overlay)
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= server_of(overlay).ports.keys()
    for budget in of_kind(overlay, "PodDisruptionBudget"):
        assert _selected(overlay, budget["spec"]["selector"]["matchLabels"]) == _servers(overlay)


@each_overlay
def test_prometheus_scrapes_the_pods_with_a_server_and_the_alert_for_one_that_is_down_knows_their_job(
    overlay: str,
) -> None:
    (monitor,) = of_kind(overlay, "PodMonitor")
    assert _selected(overlay, monitor["spec"]["selector"]["matchLabels"]) == _servers(overlay)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint.get("path", "/metrics") == "/metrics"
    assert endpoint["port"] in server_of(overlay).ports
    job = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"  # as the operator has it without jobLabel
    rules = yaml.safe_load((KUBERNETES.parent / "prometheus" / "rules" / "alerts.yaml").read_text())
    alerts = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    matcher = re.search(r'job=~"([^"]+)"', alerts["DataplaneServerDown"])
    assert matcher is not None
    assert re.fullmatch(matcher[1], job)


@each_overlay
def test_a_pod_with_a_server_admits_prometheus_and_named_clients_and_nobody_else(overlay: str) -> None:
    admitted: dict[int | None, list[object]] = {}
    for policy in of_kind(overlay, "NetworkPolicy"):
        chosen = _selected(overlay, policy["spec"]["podSelector"]["matchLabels"])
        assert chosen == _servers(overlay), "a policy that selects nobody protects nobody"
        for rule in policy["spec"].get("ingress", ()):
            assert all("podSelector" in peer for peer in rule["from"])
            for port in rule.get("ports", [{"port": None}]):
                admitted.setdefault(port["port"], []).extend(rule["from"])
    ports = server_of(overlay).ports
    ranks = {None} if overlay == "sidecar" else set()
    assert set(admitted) - ranks == set(ports.values()) - {ports["health"]}


def test_only_named_clients_reach_the_rows_over_the_network_and_ranks_of_a_trainer_each_other() -> None:
    policies = of_kind("statefulset", "NetworkPolicy")
    (rule,) = [rule for policy in policies for rule in policy["spec"]["ingress"] if {"port": 50051} in rule["ports"]]
    assert all(peer["podSelector"]["matchLabels"] == CLIENT for peer in rule["from"])
    (trainer,) = (pod for pod in pods("statefulset") if pod.workload["kind"] == "Job")
    assert trainer.labels.items() >= CLIENT.items()
    (policy,) = (one for one in of_kind("sidecar", "NetworkPolicy") if one["metadata"]["name"] == "trainer-ranks")
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": policy["spec"]["podSelector"]}]}]


# -- rights ------------------------------------------------------------------------------------------------------------


@each_overlay
def test_every_container_is_an_ordinary_user_without_capabilities_but_one_that_gives_away_a_directory_and_ends(
    overlay: str,
) -> None:
    for container in containers(overlay):
        rights = container.rights
        assert rights["readOnlyRootFilesystem"] is True
        if container.name in ROOT.get(overlay, ()):
            assert container.fields in container.pod.spec["initContainers"]
            assert "restartPolicy" not in container.fields
            assert rights["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
            continue
        assert rights["runAsNonRoot"] is True
        assert rights["runAsUser"] > 0
        assert rights["runAsGroup"] > 0
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}


@each_overlay
def test_pods_have_no_token_and_no_namespace_of_the_host_and_theirs_forbids_what_they_do_not_need(overlay: str) -> None:
    for pod in pods(overlay):
        assert pod.spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & pod.spec.keys()
        mounts = {mount["name"] for container in pod.containers for mount in container.fields.get("volumeMounts", ())}
        assert {volume["name"] for volume in pod.volumes} == mounts
    (namespace,) = of_kind(overlay, "Namespace")
    volumes = [volume for pod in pods(overlay) for volume in pod.spec.get("volumes", ())]
    level = "privileged" if any("hostPath" in volume for volume in volumes) else "restricted"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level


# -- releases ----------------------------------------------------------------------------------------------------------


@each_overlay
def test_server_and_trainer_are_of_this_release(overlay: str) -> None:
    images = dict(container.fields["image"].split(":") for container in containers(overlay))
    assert images.pop("busybox", "1.37.0") == "1.37.0"
    assert images == {"rl-dataplane-server": VERSION, "rl-dataplane-trainer": VERSION}
    assert {one["metadata"]["labels"]["app.kubernetes.io/version"] for one in rendered(overlay)} == {VERSION}


def test_a_new_release_restarts_no_server_that_holds_rows_and_changes_nothing_that_cannot_be_changed() -> None:
    (daemons,), (workload,) = of_kind("daemonset", "DaemonSet"), of_kind("statefulset", "StatefulSet")
    assert daemons["spec"]["updateStrategy"] == workload["spec"]["updateStrategy"] == {"type": "OnDelete"}
    changeable = {"replicas", "template", "updateStrategy", "podManagementPolicy"}
    fixed = {key: value for key, value in workload["spec"].items() if key not in changeable}
    assert VERSION not in json.dumps(fixed)


@pytest.mark.parametrize("overlay", ["sidecar", "statefulset"])
def test_a_node_is_not_drained_under_a_server_unless_it_is_of_no_use(overlay: str) -> None:
    (budget,) = of_kind(overlay, "PodDisruptionBudget")
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["spec"].get("maxUnavailable") == 0 or budget["spec"].get("minAvailable") == 1
