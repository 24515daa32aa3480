"""`dataplane tail`: rows as they arrive."""

from __future__ import annotations

import time
from collections.abc import Mapping

from dataplane_client.cli._listings import parsed_filter
from dataplane_client.cli._output import Format, print_json, print_text
from dataplane_client.cli._server import Server, server_or_exit
from dataplane_client.cli._text import tags_text
from dataplane_client.records.listings import SamplePage, sample_page
from dataplane_client.records.meta import Tag
from rl_dataplane.v1 import data_plane_pb2 as pb

_LOOK_S = 0.5
_PAGE_ROWS = 1000


def tail(
    partition_id: str, where: str | None, last: int, address: str, output: Format, timeout_s: float, *, follow: bool
) -> None:
    """Print the last rows that arrived, and with `follow` each later one, until Ctrl-C."""
    request = pb.ListSamplesRequest(partition_id=partition_id, page_size=_PAGE_ROWS, where=parsed_filter(where or None))
    with server_or_exit(address, timeout_s) as server:
        shown: list[tuple[str, Mapping[str, Tag]]] = []
        while page := _next(server, request):
            shown = [*shown, *_lines(page)][-last:] if last else []
        _print(shown, output)
        while follow:
            time.sleep(_LOOK_S)
            while page := _next(server, request):
                _print(_lines(page), output)


def _next(server: Server, request: pb.ListSamplesRequest) -> SamplePage | None:
    """The next page with rows, if there is one; the request then asks for what comes behind it."""
    while True:
        page = sample_page(server.call("ListSamples", request), request.partition_id, None)
        if page.meta.generations:
            request.page_token = page.next_page or page.meta.generations[-1] + 1
            return page
        if page.next_page is None:
            return None
        request.page_token = page.next_page


def _lines(page: SamplePage) -> list[tuple[str, Mapping[str, Tag]]]:
    tags = page.meta.tags or [{} for _ in page.meta.sample_ids]
    return [*zip(page.meta.sample_ids, tags, strict=True)]


def _print(rows: list[tuple[str, Mapping[str, Tag]]], output: Format) -> None:
    if output == "json":
        for sample_id, tags in rows:
            print_json({"sample_id": sample_id, "tags": tags}, lines=True)
    else:
        print_text(*(f"{sample_id}  {tags_text(tags)}".rstrip() for sample_id, tags in rows))
