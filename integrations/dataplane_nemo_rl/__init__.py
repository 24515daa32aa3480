"""The data plane behind NeMo-RL's `DataPlaneClient`.

NeMo-RL builds one client a process from its configuration, on the driver and in every worker, and pickles it into
actors. `DataPlaneAdapter` is such a client: it holds an address, connects with its first call, and has the methods of
their abstract class in their order of arguments. Their factory knows a closed set of implementations, so `install()`
adds ours to it, under the name "rl_dataplane":

    data_plane:
      enabled: true
      impl: rl_dataplane
      address: unix:///run/dataplane.sock    # without it: the environment variable DATAPLANE_SERVER
      coroutines: false                      # for the asynchronous loop: true makes the verbs coroutines
      tokens_field: input_ids                # whose entries are the tokens of a row
      connect: {timeout_s: 120}              # other settings, as dataplane_client.connect takes them

Every process that builds a client has to call `install()`, before or after it imports NeMo-RL:

- the driver, in its script;
- Ray workers: `ray.init(runtime_env={"worker_process_setup_hook": "dataplane_nemo_rl.install"})`;
- or a `sitecustomize.py` on their path that calls it, at the cost of importing NeMo-RL in every Python process.

The distribution of a `transfer_queue` module needs none of this: NeMo-RL's own adapter then talks to our server.

NeMo-RL itself is imported if it is installed. The adapter is then a subclass of their `DataPlaneClient`, and its metas
are their `KVBatchMeta`; without NeMo-RL they are `dataplane_client.KVBatchMeta`, which has the same fields and methods.
"""

from dataplane_nemo_rl._adapter import DataPlaneAdapter
from dataplane_nemo_rl._factory import IMPL, build_data_plane_client, install
from dataplane_nemo_rl._types import KVBatchMeta

__all__ = ["IMPL", "DataPlaneAdapter", "KVBatchMeta", "build_data_plane_client", "install"]
