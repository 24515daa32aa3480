"""Late bytes, bytes in tiny pieces and connections that are reset again and again: callers do not notice."""

from __future__ import annotations

import pytest
from tests.integration.faults.harmless import HARMLESS
from tests.integration.faults.proxy import FaultProxy
from tests.integration.faults.verbs import VERBS, prepare

from dataplane_client.client import DataPlaneClient


@pytest.mark.parametrize("fault", HARMLESS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_call_is_carried_out_once(
    client: DataPlaneClient, shaky: DataPlaneClient, proxy: FaultProxy, fault: str, verb: str
) -> None:
    prepare(client, "p")
    state = VERBS[verb].before(shaky, "p")
    HARMLESS[fault](proxy)
    answer = VERBS[verb].call(shaky, "p", state, 20.0)
    assert VERBS[verb].effects(client, "p") == 1
    del answer  # a claim or a group, which would be given back
