"""The data-plane server.

`core` decides and does no I/O. `storage` holds the bytes of values. `service` serves gRPC and shared memory. `observe`
has metrics and traces. The command is `dataplane-server`; `testing.running_server` runs a server for tests and
notebooks.
"""
