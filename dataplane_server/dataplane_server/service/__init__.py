"""The shell around the core: it parses requests, applies calls to the core, waits, and sends responses.

Each module imports only modules that come before it in this list:

1. `error_table`, `frames`, `binding`, `endless`, `waiters`, `ticker`: they import no other module of the service.
2. `call_scope` (what happens around every call), `session_streams`, `shell` (applies calls to the core).
3. `translate`, `translate_claims`, `translate_samples`, `translate_listings`: messages and values of the core.
4. `claim_calls`, `session_calls`, `servicer`: the gRPC service.
5. `local_session`, `local_calls`, `local_methods`, `local_connection`, `local_endpoint`: clients of this host.
6. `boundary` (the gRPC interceptor), `health`, `server` (makes and connects all of them).
"""
