"""Lists of rows, beyond what one page looks at."""

from __future__ import annotations

from collections.abc import Callable

from tests.core.caller import Caller

from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.requests import PutSamples


def test_a_page_of_rows_that_fit_a_filter_ends_after_65536_rows(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register()
    ids = [f"s{row}" for row in range(65_536)]
    caller.put(PutSamples(caller.request_id(), "p", ids))
    caller.put(PutSamples(caller.request_id(), "p", ["last"], tags=[{"std": 1}]))
    where = (Term("==", "std", values=(1,)),)
    first = caller.plane.list_samples("p", "", [], where, 10, 0)
    assert (first.sample_ids, first.next_page_token > 0) == ((), True)
    second = caller.plane.list_samples("p", "", [], where, 10, first.next_page_token)
    assert (second.sample_ids, second.next_page_token) == (("last",), 0)
