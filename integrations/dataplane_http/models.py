"""What requests ask for. A key that is not known is refused, so a typing error does not lose data. Lists and objects
are counted before their entries are looked at. The server checks ids, tags and all other limits.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from pydantic_core import PydanticCustomError

MAX_ROWS = 65_536
MAX_FIELDS = 64
MAX_TAGS = 64
MAX_CLAIMED = 4096
LEASE_S = 60.0
WAIT_S = 10.0

Version = Annotated[int, Field(ge=0, le=(1 << 31) - 2)]
Names = Annotated[list[str], FailFast(), Field(max_length=MAX_FIELDS)]
Lease = Annotated[
    float, Field(ge=1, le=3600, description="Seconds without a request that names it, after which it ends.")
]
Wait = Annotated[float, Field(ge=0.1, le=60, description="Seconds to wait for it, at most.")]


def _counted(samples: object) -> object:
    if isinstance(samples, list) and len(samples) > MAX_ROWS:
        raise PydanticCustomError(
            "too_long", "{count} entries; the limit is {max_length}", {"count": len(samples), "max_length": MAX_ROWS}
        )
    return samples


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SampleFields(Body):
    """Fields of one sample."""

    sample_id: str
    fields: dict[str, Any] = Field({}, max_length=MAX_FIELDS)


class Sample(SampleFields):
    """One sample. sequence_length: in tokens."""

    tags: dict[str, Any] = Field({}, max_length=MAX_TAGS)
    sequence_length: Version | None = None


DTypes = Annotated[
    dict[str, str], Field(max_length=MAX_FIELDS, description="Element types of fields, such as float32, by name.")
]


class Samples(Body):
    """Rows to write. weight_version: a tag of each row."""

    samples: Annotated[list[Sample], FailFast(), Field(max_length=MAX_ROWS), BeforeValidator(_counted)]
    weight_version: Version | None = None
    dtypes: DTypes = {}


class Put(Samples):
    """A put. request_id: repeat it after a lost connection: it is carried out once. group_id: the samples become a new
    group. create_only: refused if one of the samples exists.
    """

    request_id: str | None = None
    group_id: str | None = None
    create_only: bool = False


class Registration(Body):
    """A partition, as `register_partition` of the Python client takes it. Registering again is safe."""

    fields: Names
    tasks: Names
    num_samples: int = 0
    per_token_fields: Names = []
    grpo_group_size: int | None = None
    max_deliveries: int = 0
    replace: bool = False
    open: bool = False
    clear_when_consumed: bool = False
    dtypes: dict[str, str] = {}


class Claim(Body):
    """Rows to claim, as `claim` of the Python client does. where: a filter, such as "std > 0.1 and age_s < 60"."""

    fields: Names
    batch_size: Annotated[int, Field(ge=1, le=MAX_CLAIMED)]
    min_size: int | None = None
    whole_groups: bool = False
    unit: Literal["rows", "groups"] | None = None
    max_tokens: int | None = None
    where: str | None = None
    wait_s: Wait = WAIT_S
    lease_s: Lease = LEASE_S


class Commit(Body):
    """samples: none, or all rows of the claim in its order, whose fields are written in the same step."""

    samples: Annotated[list[SampleFields], FailFast(), Field(max_length=MAX_ROWS), BeforeValidator(_counted)] = []
    dtypes: DTypes = {}


class Release(Body):
    """delay_s: before the rows can be claimed again. reason: given, it counts the delivery as a failed one."""

    delay_s: float = 0.0
    reason: str = ""


class Abort(Body):
    reason: str = ""


class Reservation(Body):
    """A group to reserve, as `reserve_group` of the Python client does. weight_version: with which its generation
    begins. At its deadline the server commits it, if at least min_rows rows are complete, or removes it.
    """

    group_id: str
    sample_ids: Annotated[list[str], FailFast(), Field(max_length=MAX_CLAIMED)] = []
    weight_version: Version | None = None
    deadline_s: float | None = None
    min_rows: int | None = None
    complete_fields: Names = []
    max_regenerations: int | None = None
    wait_s: Wait = WAIT_S
    lease_s: Lease = LEASE_S


class Fail(Body):
    """Samples of a group whose generation failed."""

    sample_ids: Annotated[list[str], FailFast(), Field(max_length=MAX_CLAIMED)]
    reason: str = ""


class Finish(Body):
    """weight_version: with which generation has ended."""

    weight_version: Version | None = None


class ClaimedSample(BaseModel):
    sample_id: str
    tags: dict[str, Any]
    sequence_length: int | None
    deliveries: int
    group_id: str | None


class Claimed(BaseModel):
    claim_id: str
    lease_s: float
    samples: list[ClaimedSample]


class Reserved(BaseModel):
    reservation_id: str
    lease_s: float


class Written(BaseModel):
    """consumed_rows: of the replaced rows, those that a task has consumed and does not get again."""

    request_id: str
    created_rows: int
    replaced_rows: int = 0
    consumed_rows: int = 0


class Done(BaseModel):
    """rows: that were consumed, returned, shown to claims, or removed."""

    rows: int


class Kept(BaseModel):
    lease_s: float


class Row(BaseModel):
    sample_id: str
    fields: dict[str, Any]


class Rows(BaseModel):
    samples: list[Row]


class Health(BaseModel):
    status: Literal["serving"]


class Error(BaseModel):
    """What went wrong. Other keys tell what it is about: field, sample_id, partition_id, a limit."""

    model_config = ConfigDict(extra="allow")

    reason: str
    message: str


class Failed(BaseModel):
    error: Error
