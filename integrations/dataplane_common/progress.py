"""Which rows a training run is done with, such that a run that was killed resumes from its checkpoint with the others.

A row that a step has used gets the number of the step as its tag `trained_in`, in one call for all rows of the step and
before the trainer can save. When the trainer has saved step S, rows with numbers up to S are removed. A run that
resumes from the checkpoint of step S removes them, too, and gets all other rows back, whatever had become of them: the
checkpoint alone says what the model was trained on, and the server keeps no cursor that could differ from it.

One run at a time uses a partition and task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import NotFoundError

TAG: Final = "trained_in"

UNTRAINED: Final = f"{TAG} is null"
"""A filter: rows that no step has used."""


class Progress:
    """The progress of a run through a partition. Calls block at most the client's timeout_s and raise its errors."""

    def __init__(self, client: DataPlaneClient, partition_id: str, task: str) -> None:
        self._client = client
        self._partition_id = partition_id
        self._task = task

    def mark(self, rows: Mapping[str, int], step: int) -> None:
        """The step has used these rows (ids and generations). Rows that were cleared meanwhile are left out."""
        left = dict(rows)
        while left:
            try:
                self._tag(left, step)
                return
            except NotFoundError as error:  # noqa: PERF203  # once for each row that is gone
                if left.pop(error.details.get("sample_id", ""), None) is None:
                    raise

    def forget(self, step: int) -> None:
        """The step is saved: remove the rows of all steps up to it."""
        self._client.clear_samples(None, self._partition_id, where=f"{TAG} <= {step}")

    def rewind(self, step: int) -> None:
        """The run goes on from the checkpoint of this step. Ends the claims of the run that was killed."""
        self.forget(step)
        page: int | None = None
        while True:
            found = self._client.list_samples(self._partition_id, where=f"{TAG} > {step}", page=page)
            self._tag(dict(zip(found.meta.sample_ids, found.meta.generations or (), strict=True)), None)
            page = found.next_page
            if page is None:
                break
        self._client.reset(self._partition_id, self._task)

    def _tag(self, rows: Mapping[str, int], step: int | None) -> None:
        if rows:
            tags = [{TAG: step}] * len(rows)
            self._client.put_samples(list(rows), self._partition_id, tags=tags, generations=list(rows.values()))
