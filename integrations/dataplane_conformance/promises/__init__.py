"""The promises, in the order of the table."""

from dataplane_conformance.lab import PROMISES
from dataplane_conformance.promises import claims, deaths, groups, puts, servers

__all__ = ["PROMISES", "claims", "deaths", "groups", "puts", "servers"]
