"""Messages to calls of the core: weight versions, and the policies of tasks and partitions."""

from __future__ import annotations

from dataplane_server.core.calls.policies import TaskPolicy, TaskPolicyOf
from dataplane_server.core.calls.requests import SetPolicies, SetWeightVersion
from dataplane_server.service.translate.forms import MAPPER
from rl_dataplane.v1 import data_plane_pb2 as pb

set_version = MAPPER.reader(SetWeightVersion, pb.SetWeightVersionRequest)
_policy = MAPPER.reader(TaskPolicy, pb.TaskPolicy)


def _policies(request: pb.SetPoliciesRequest) -> tuple[TaskPolicyOf, ...]:
    return tuple([TaskPolicyOf(task, _policy(message)) for task, message in sorted(request.tasks.items())])


set_policies = MAPPER.reader(SetPolicies, pb.SetPoliciesRequest, tasks=_policies)
