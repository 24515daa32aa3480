"""All verbs of one core, put together."""

from __future__ import annotations

from dataplane_server.core.state.claim_table import ClaimTable
from dataplane_server.core.state.state import State
from dataplane_server.core.verbs.admission import Admission
from dataplane_server.core.verbs.claim_queue import ClaimQueue
from dataplane_server.core.verbs.claims import Claims
from dataplane_server.core.verbs.draws import Draws
from dataplane_server.core.verbs.expiry import Expiry
from dataplane_server.core.verbs.flow import Flow
from dataplane_server.core.verbs.freshness import Freshness
from dataplane_server.core.verbs.groups import Groups
from dataplane_server.core.verbs.memory_holders import Holders
from dataplane_server.core.verbs.nodes import Nodes
from dataplane_server.core.verbs.partitions import Partitions
from dataplane_server.core.verbs.reads import Reads
from dataplane_server.core.verbs.steps import Steps
from dataplane_server.core.verbs.writes import Writes


class Verbs:
    """What calls do to a state."""

    def __init__(self, state: State) -> None:
        self.table = ClaimTable(state)
        self.queue = ClaimQueue(state)
        self.admission = Admission(state)
        self.claims = Claims(state, self.queue, self.table)
        self.steps = Steps(state, self.queue, self.table, self.claims)
        self.freshness = Freshness(state)
        self.flow = Flow(state)
        self.draws = Draws(state, self.flow)
        self.writes = Writes(state, self.admission, self.flow, self.claims, self.freshness)
        self.reads = Reads(state)
        self.holders = Holders(state, self.table, self.admission, self.writes, self.reads)
        self.groups = Groups(state, self.flow)
        self.nodes = Nodes(state, self.writes)
        self.partitions = Partitions(state, self.queue, self.claims, self.steps, self.writes)
        self.expiry = Expiry(state, self.queue, self.claims, self.groups, self.flow)
