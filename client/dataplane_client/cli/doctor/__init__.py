"""`dataplane doctor`: what a client needs to work well from where it runs, checked one by one."""

from dataplane_client.cli.doctor._examination import examine

__all__ = ["examine"]
