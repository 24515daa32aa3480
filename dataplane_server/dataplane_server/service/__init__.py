"""The shell around the core: it parses requests, applies calls to the core, waits, and sends responses.

Modules by layer; each imports only from layers above it in this list:

1. `error_table`, `frames`, `binding`, `endless`, `waiters`, `ticker`: no other part of the service.
2. `call_scope` (what happens around every call), `session_streams`.
3. `shell`: applies calls to the core. `translate`, `translate_claims`, `translate_samples`: messages and core values.
4. `claim_calls`, `session_calls`, then `servicer`: the gRPC service.
5. `local_session`, `local_calls`, `local_methods`, `local_connection`, `local_endpoint`: clients of this host.
6. `boundary` (the gRPC interceptor), `health`.
7. `server`: makes and connects all of them.
"""
