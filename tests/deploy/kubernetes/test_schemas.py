"""Every manifest is what Kubernetes and Prometheus Operator take, without a field that they do not know."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import kubernetes_validate
from tests.deploy.kubernetes.manifests import each_overlay, name_of, of_kind, rendered

VERSIONS = ("1.29", "1.31", "1.34", "1.37")
"""From the first with native sidecars to the newest that the validator knows."""

POD_MONITOR = json.loads((Path(__file__).parent / "pod_monitor.schema.json").read_text())


@each_overlay
def test_kubernetes_and_prometheus_operator_take_every_manifest_and_no_two_have_one_name(overlay: str) -> None:
    for manifest in rendered(overlay):
        if manifest["kind"] == "PodMonitor":
            jsonschema.validate(manifest, POD_MONITOR)
        else:
            for version in VERSIONS:
                assert kubernetes_validate.validate(manifest, version, strict=True) == version
    names = [name_of(manifest) for manifest in rendered(overlay)]
    assert (len(of_kind(overlay, "PodMonitor")), len(names)) == (1, len(set(names)))
