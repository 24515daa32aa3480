"""Whatever selects pods selects those that it means: services, firewalls, budgets, monitors, workloads."""

from __future__ import annotations

import re

import yaml
from tests.deploy.kubernetes.manifests import KUBERNETES, Pod, each_overlay, of_kind, pods, rendered, server_of

SERVER = "rl-dataplane/server"
CLIENT = "rl-dataplane/client"


def _selected(overlay: str, labels: dict[str, str]) -> list[Pod]:
    return [pod for pod in pods(overlay) if labels.items() <= pod.labels.items()]


def _servers(overlay: str) -> list[str]:
    return [str(pod) for pod in pods(overlay) if any(container.name == "server" for container in pod.containers)]


def _names(chosen: list[Pod]) -> list[str]:
    return [str(pod) for pod in chosen]


@each_overlay
def test_everything_is_in_the_namespace_that_the_overlay_makes(overlay: str) -> None:
    (namespace,) = of_kind(overlay, "Namespace")
    for manifest in rendered(overlay):
        if manifest is not namespace:
            assert manifest["metadata"]["namespace"] == namespace["metadata"]["name"]


@each_overlay
def test_a_pod_has_the_label_of_a_server_exactly_when_there_is_one_in_it(overlay: str) -> None:
    assert _names(_selected(overlay, {SERVER: "true"})) == _servers(overlay)


@each_overlay
def test_workloads_select_their_own_pods(overlay: str) -> None:
    for pod in pods(overlay):
        selector = pod.workload["spec"].get("selector")
        if selector is not None:
            assert _names(_selected(overlay, selector["matchLabels"])) == [str(pod)]


@each_overlay
def test_prometheus_scrapes_the_pods_with_a_server_at_the_port_of_metrics(overlay: str) -> None:
    (monitor,) = of_kind(overlay, "PodMonitor")
    assert _names(_selected(overlay, monitor["spec"]["selector"]["matchLabels"])) == _servers(overlay)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint.get("path", "/metrics") == "/metrics"
    assert endpoint["port"] in server_of(overlay).ports


@each_overlay
def test_the_alert_for_a_server_that_is_down_knows_the_job_of_the_pod_monitor(overlay: str) -> None:
    (monitor,) = of_kind(overlay, "PodMonitor")
    job = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"  # as the operator has it without jobLabel
    rules = yaml.safe_load((KUBERNETES.parent / "prometheus" / "rules" / "alerts.yaml").read_text())
    alerts = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    matcher = re.search(r'job=~"([^"]+)"', alerts["DataplaneServerDown"])
    assert matcher is not None
    assert re.fullmatch(matcher[1], job)


@each_overlay
def test_services_and_budgets_select_the_pods_with_the_server(overlay: str) -> None:
    for service in of_kind(overlay, "Service"):
        assert _names(_selected(overlay, service["spec"]["selector"])) == _servers(overlay)
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= server_of(overlay).ports.keys()
    for budget in of_kind(overlay, "PodDisruptionBudget"):
        assert _names(_selected(overlay, budget["spec"]["selector"]["matchLabels"])) == _servers(overlay)


@each_overlay
def test_a_pod_with_a_server_admits_prometheus_and_named_clients_and_nobody_else(overlay: str) -> None:
    (server,) = _selected(overlay, {SERVER: "true"})
    admitted: dict[int | None, list[object]] = {}
    for policy in of_kind(overlay, "NetworkPolicy"):
        chosen = _selected(overlay, policy["spec"]["podSelector"]["matchLabels"])
        assert _names(chosen) == [str(server)], "a policy that selects nobody protects nobody"
        for rule in policy["spec"].get("ingress", ()):
            assert all("podSelector" in peer for peer in rule["from"])
            for port in rule.get("ports", [{"port": None}]):
                admitted.setdefault(port["port"], []).extend(rule["from"])
    ports = server_of(overlay).ports
    ranks = {None} if overlay == "sidecar" else set()
    assert set(admitted) - ranks == set(ports.values()) - {ports["health"]}


def test_only_pods_that_are_named_clients_reach_the_rows_over_the_network() -> None:
    policies = of_kind("statefulset", "NetworkPolicy")
    rules = [rule for policy in policies for rule in policy["spec"]["ingress"] if {"port": 50051} in rule["ports"]]
    (rule,) = rules
    assert all(peer["podSelector"]["matchLabels"] == {CLIENT: "true"} for peer in rule["from"])
    (trainer,) = (pod for pod in pods("statefulset") if pod.workload["kind"] == "Job")
    assert trainer.labels[CLIENT] == "true"


def test_ranks_of_a_trainer_reach_each_other() -> None:
    (policy,) = (one for one in of_kind("sidecar", "NetworkPolicy") if one["metadata"]["name"] == "trainer-ranks")
    (rule,) = policy["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
