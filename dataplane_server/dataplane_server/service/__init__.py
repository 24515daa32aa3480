"""The shell around the core: it parses requests, applies calls to the core, waits, and sends responses.

`messages` parses requests within bounds, `translate` makes calls of the core of them, `shell` applies these, and
`call_scope` is around every call. `grpc` has the service and the interceptor around its methods, `local` serves clients
of this host and those at the direct port, and `server` makes and connects all. `tests/repository/test_wings.py` has
which module may import which.
"""
