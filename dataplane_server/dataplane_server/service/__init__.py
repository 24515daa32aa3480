"""The shell around the core: it parses requests, applies calls to the core, waits, and sends responses.

Each module imports only modules that come before it in this list:

1. `error_table`, `binding`, `endless`, `waiters`, `ticker`, `turns`: they import no other module of the service.
2. `messages`: requests parsed within bounds, and streams of frames. `translate`: messages and values of the core.
3. `call_scope` (what happens around every call), `session_streams`, `shell` (applies calls to the core).
4. `grpc`: the service, and the interceptor around its methods.
5. `local`: clients of this host, and those at the direct port.
6. `server`: makes and connects all of them.
"""
