"""What the manifests say about the server is what the server does: arguments, ports, probes, time to drain."""

from __future__ import annotations

import pytest
from tests.deploy.kubernetes.manifests import (
    OVERLAYS,
    PROBES,
    Container,
    address_of_trainer,
    config_of,
    each_overlay,
    server_of,
)

from dataplane_server.config import host_and_port


@each_overlay
def test_the_ports_of_the_container_are_those_that_the_server_listens_at(overlay: str) -> None:
    config = config_of(overlay)
    assert config.http is not None
    assert config.health is not None
    listened = [config.http, config.health, *(address for address in config.listen if not address.startswith("unix:"))]
    ports = [host_and_port("", address) for address in listened]
    assert sorted(server_of(overlay).ports.values()) == sorted(port for _, port in ports)
    assert {host for host, _ in ports} == {"0.0.0.0"}, "kubelet, Prometheus and clients come to the pod's address"  # noqa: S104


@each_overlay
def test_probes_ask_the_port_of_health_and_only_liveness_asks_whether_a_restart_would_help(overlay: str) -> None:
    server = server_of(overlay)
    asked = {probe: server.fields[probe]["grpc"]["service"] for probe in PROBES}
    assert asked == {"startupProbe": "readiness", "readinessProbe": "readiness", "livenessProbe": "liveness"}
    assert {server.fields[probe]["grpc"]["port"] for probe in PROBES} == {server.ports["health"]}
    assert server.ports["health"] == host_and_port("health", config_of(overlay).health or "")[1]


@each_overlay
def test_a_server_is_restarted_later_than_it_is_taken_for_not_ready_and_not_while_it_recovers(overlay: str) -> None:
    after_s = {probe: _patience_s(server_of(overlay), probe) for probe in PROBES}
    assert after_s["readinessProbe"] <= 15
    assert after_s["livenessProbe"] >= 60
    reads_values = config_of(overlay).durability == "disk"  # all of them, maybe with 30 MB/s
    assert after_s["startupProbe"] >= (config_of(overlay).limits.memory_bytes / 30e6 if reads_values else 120)


def _patience_s(server: Container, probe: str) -> int:
    fields = server.fields[probe]
    assert fields["timeoutSeconds"] <= fields["periodSeconds"]
    return int(fields["periodSeconds"] * fields["failureThreshold"])


@each_overlay
def test_the_pod_lives_longer_than_its_server_may_drain(overlay: str) -> None:
    server = server_of(overlay)
    slept_s = server.fields.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert server.pod.spec["terminationGracePeriodSeconds"] >= slept_s + config_of(overlay).drain_grace_s + 5


@pytest.mark.parametrize(("overlay", "waits"), [("sidecar", False), ("daemonset", False), ("statefulset", True)])
def test_a_server_waits_before_it_drains_where_clients_find_it_by_an_endpoint(overlay: str, waits: bool) -> None:
    assert ("lifecycle" in server_of(overlay).fields) == waits


@each_overlay
def test_memory_is_shared_exactly_where_clients_come_over_a_unix_socket(overlay: str) -> None:
    address = address_of_trainer(overlay)
    assert config_of(overlay).share_memory == address.startswith("unix:")


@each_overlay
def test_a_port_that_other_pods_reach_has_tls_and_knows_its_callers(overlay: str) -> None:
    config = config_of(overlay)
    assert not config.insecure
    reached = [address for address in config.listen if not address.startswith("unix:")]
    assert (len(reached) > 0) == (config.tls is not None) == (config.access is not None)


def test_overlays_differ_in_nothing_but_what_they_say() -> None:
    own = {"args", "env", "ports", "resources", "volumeMounts", "lifecycle", "restartPolicy"}
    common = [{key: value for key, value in server_of(o).fields.items() if key not in own} for o in OVERLAYS]
    assert common[0] == common[1] == common[2]
