"""What changes from release to release, and what a restart may cost."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

import pytest
from tests.deploy.kubernetes.manifests import KUBERNETES, OVERLAYS, containers, each_overlay, of_kind, rendered

VERSION = version("rl-dataplane")


@each_overlay
def test_server_and_trainer_are_of_this_release(overlay: str) -> None:
    images = dict(container.fields["image"].split(":") for container in containers(overlay))
    assert images.pop("busybox", "1.37.0") == "1.37.0"
    assert images == {"rl-dataplane-server": VERSION, "rl-dataplane-trainer": VERSION}
    assert {one["metadata"]["labels"]["app.kubernetes.io/version"] for one in rendered(overlay)} == {VERSION}


def test_a_new_release_changes_nothing_of_a_stateful_set_that_cannot_be_changed() -> None:
    (workload,) = of_kind("statefulset", "StatefulSet")
    changeable = {"replicas", "template", "updateStrategy", "podManagementPolicy"}
    fixed = {key: value for key, value in workload["spec"].items() if key not in changeable}
    assert VERSION not in json.dumps(fixed)


@pytest.mark.parametrize(("overlay", "kind"), [("daemonset", "DaemonSet"), ("statefulset", "StatefulSet")])
def test_a_new_release_restarts_no_server_that_holds_rows(overlay: str, kind: str) -> None:
    (workload,) = of_kind(overlay, kind)
    assert workload["spec"]["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize("overlay", ["sidecar", "statefulset"])
def test_a_node_is_not_drained_under_a_server_unless_it_is_of_no_use(overlay: str) -> None:
    (budget,) = of_kind(overlay, "PodDisruptionBudget")
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["spec"].get("maxUnavailable") == 0 or budget["spec"].get("minAvailable") == 1


REASONS_OWED = re.compile(
    r"\b(fsGroup|supplementalGroups|startupProbe|readinessProbe|livenessProbe|terminationGracePeriodSeconds|hostPath|"
    r"readOnlyRootFilesystem|automountServiceAccountToken|updateStrategy|medium|lifecycle|volumeClaimTemplates|"
    r"podManagementPolicy|unhealthyPodEvictionPolicy|tolerations|clusterIP|backoffLimit|runAsUser|memory):|--insecure|--no-share"
)
_NEAR = 8


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_fields_that_are_not_obvious_have_a_reason_near_them_in_their_overlay_or_in_the_base(overlay: str) -> None:
    files = [*(KUBERNETES / "base").glob("*.yaml"), *(KUBERNETES / "overlays" / overlay).glob("*.yaml")]
    owed, given = set(), set()
    for lines in (file.read_text().splitlines() for file in files):
        for number, line in enumerate(lines):
            for field in REASONS_OWED.findall(line.partition("#")[0]):
                owed.add(field)
                if any("#" in near for near in lines[max(0, number - _NEAR) : number + 1]):
                    given.add(field)
    assert owed == given
