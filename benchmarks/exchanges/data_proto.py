"""Compare with verl's DataProto, which travels through Ray's object store.

verl's issue 2847 publishes 0.69 s for 0.029 GB: 64 prompts of 8k tokens, 16 responses of 10k tokens each, by verl's
transfer. It does not say which tensors these are. We send `input_ids`, `attention_mask` and `position_ids`, each int64,
and the length and mask of each row. verl sends the rectangles in one DataProto. We cut them to the lengths of the rows,
and our reader pads them again. Two batches have 29 MB of tokens:

- P: 64 full rows of 8,192 + 10,240 tokens. Nothing is padding, so both sides send the same bytes. We read views of
  shared memory (layout "auto"), as verl does with NumPy.
- Q: all 1024 rows of the 64 prompts. One has 18,432 tokens, the others 1 to 2304. verl sends 453 MB, most of it
  padding.

verl serializes a DataProto with torch or, if an environment variable says so, as NumPy arrays. The faster way counts.
"""

from __future__ import annotations

from functools import partial

from batches import P, Q, Spec
from dataplane_client._values.columns_layout import Layout
from exchanges.between_two import OurProcesses
from exchanges.compare import SAME_HOST, add_goal, fastest, report, total
from peers.environments import VERL, environment
from session import Session
from timing import Steps, alternate
from workers import Worker, worker

PEER = "verl's DataProto"
_SERIALIZATIONS = {f"{PEER}, torch": "", f"{PEER}, NumPy": "numpy"}
_LAYOUTS: dict[str, Layout] = {"P": "auto", "Q": "padded"}
_ROUNDS = {"P": 15, "Q": 7}


def measure(session: Session, ours: OurProcesses) -> None:
    """P with both ways of serialization, Q with the faster one."""
    with worker(environment(VERL, session.torch), "peers.verl_data_proto", session.logs) as verl:
        found = _beside(session, P, ours, verl, list(_SERIALIZATIONS))
        faster = min(_SERIALIZATIONS, key=lambda name: total(found[name]).median)
        _beside(session, Q, ours, verl, [faster])


def _beside(session: Session, spec: Spec, ours: OurProcesses, verl: Worker, ways: list[str]) -> dict[str, Steps]:
    sizes, systems = ours.systems(spec, _LAYOUTS[spec.name])
    verl.call("prepare", spec=spec.json(), methods=[_SERIALIZATIONS[way] for way in ways])
    for way in ways:
        systems[way] = partial(verl.call, "round", method=_SERIALIZATIONS[way])
    measured = alternate(systems, session.rounds(_ROUNDS[spec.name]), 1)
    report(session, f"data_proto.{spec.name}", f"batch {spec.name} beside {PEER}: {sizes}", measured)
    title = f"{spec.name}, {sizes}, from process to process: at least as fast as {PEER}"
    peer = fastest({way: measured[way] for way in ways})
    add_goal(session, title, total(measured[SAME_HOST]), total(peer))
    return measured
