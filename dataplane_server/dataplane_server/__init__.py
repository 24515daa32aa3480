"""The data-plane server.

`core` decides and does no I/O; `storage` keeps bytes; `service` speaks gRPC; `observe` tells Prometheus. The command is
`dataplane-server`; `testing.running_server` runs one for tests and notebooks.
"""
