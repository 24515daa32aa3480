"""The module `transfer_queue`, by RL Data Plane.

It is a distribution, since each process of a Ray job imports the module by its name, and nothing can be called in all
of them first that would put ours in its place. It has TransferQueue's own name, so that an environment has one of the
two, and requirements of TransferQueue are satisfied by it.
"""

from dataplane_transfer_queue import *  # noqa: F403 - whatever ours has
from dataplane_transfer_queue import __all__ as __all__
from dataplane_transfer_queue import __version__ as __version__
