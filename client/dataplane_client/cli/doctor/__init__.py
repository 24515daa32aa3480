"""`dataplane doctor`: checks whether a client can work well from where the command runs."""

from dataplane_client.cli.doctor._examine import examine

__all__ = ["examine"]
