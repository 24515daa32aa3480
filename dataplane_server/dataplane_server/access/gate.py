"""Decides who calls, and whether they may.

Who calls is decided before anything of a request is read, whether they may as soon as it is known which partition it
concerns. What a call does meanwhile finds its caller in its context (`current_caller`), on every transport.

A token decides if one is sent, else the certificate. Without an access file every certificate of the clients' CA may do
everything; without TLS, so may processes on loopback whose user is the server's, root, or allowed. Over a Unix socket
the rights of its file have decided who is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dataplane_server.access.access_file import AccessRules
from dataplane_server.access.loopback import user_at
from dataplane_server.access.peers import AllowedPeers, Peer
from dataplane_server.access.reloading import Reloaded
from dataplane_server.access.roles import CHANGES, EVERYTHING, WRITE_BACK, Caller, roles_for
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.log import get_log

_BEARER = "bearer "
_INSTEAD = "start it with --allow-user, on a Unix socket, with --access, or with --insecure"
_LOG_EVERY_S = 60.0
_current: ContextVar[Caller] = ContextVar("caller", default=EVERYTHING)


def current_caller() -> Caller:
    """Who makes the call that is being served."""
    return _current.get()


@contextlib.contextmanager
def acting_as(caller: Caller) -> Iterator[None]:
    """A block that serves a call of this caller."""
    before = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(before)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a call over TCP comes with. peer: as gRPC tells it. token: from its authorization header, or None.
    certificate: the names in the client's certificate; None without one.
    """

    peer: str
    token: str | None = None
    certificate: tuple[str, ...] | None = None


class Gate:
    """The access rules of one server. rules: of the access file, or None. certificates: whether clients must show one.
    users: of this host that loopback is open to; None for all, where nothing is to be checked.
    """

    def __init__(
        self,
        rules: Reloaded[AccessRules] | None,
        partition_of: Callable[[str], str | None],
        *,
        certificates: bool = False,
        users: AllowedPeers | None = None,
    ) -> None:
        """partition_of: the partition of a claim or a reservation."""
        self._rules = rules
        self._partition_of = partition_of
        self._certificates = certificates
        self._users = users
        self.ports: list[int] = []
        """Of the listeners."""
        self._unknown_callers = 0  # since the log last told of one
        self._log_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether everybody who can connect may do everything."""
        return self._rules is None and (self._certificates or self._users is None)

    @property
    def asks_for_credentials(self) -> bool:
        """Whether callers over TCP need a token or a certificate that the access file knows."""
        return self._rules is not None

    # -- who calls -----------------------------------------------------------------------------------------------------

    def at_unix_socket(self, token: str | None = None) -> Caller:
        """The caller at a Unix socket. A token may narrow what that is. Refusal UNAUTHENTICATED if it is unknown."""
        if self._rules is None:
            return EVERYTHING
        return self._rules.now().unix_sockets if token is None else self._of_token(token, "a Unix socket")

    def unix_sockets_write(self) -> bool:
        """Whether callers at Unix sockets have a role that stores values."""
        return any(map(self.at_unix_socket().may_somewhere, ("PutSamples", "CommitClaim")))

    def at_port(self, credentials: Credentials) -> Caller:
        """The caller over TCP. Refusal UNAUTHENTICATED says what is missing, but nothing of what was sent."""
        if self._rules is None:
            if not self.is_open and self._users is not None:
                self._check_user(credentials, self._users)
            return EVERYTHING
        if credentials.token is not None:
            return self._of_token(credentials.token, credentials.peer)
        for name in credentials.certificate or ():
            if (caller := self._rules.now().certificates.get(name)) is not None:
                return caller
        if credentials.certificate is not None:
            names = ", ".join(credentials.certificate)
            why = f"the access file knows no name in the client's certificate ({names})"
        else:
            why = "the call has no token; pass connect(credentials=...), or set DATAPLANE_TOKEN_FILE"
        raise self._unknown(why, credentials.peer)

    def _of_token(self, token: str, peer: str) -> Caller:
        assert self._rules is not None  # noqa: S101  # both callers have looked
        rules = self._rules.now()
        caller, why = rules.tokens.get(hashlib.sha256(token.encode()).hexdigest()), "the token is unknown, or has ended"
        if caller is None and rules.jwt is not None and (subject := rules.jwt.subject(token)) is not None:
            caller, why = rules.subjects.get(subject), f"the access file does not know the token's subject {subject!r}"
        if caller is None:
            raise self._unknown(why, peer)
        return caller

    def _check_user(self, credentials: Credentials, users: AllowedPeers) -> None:
        try:
            user = next((user for port in self.ports if (user := user_at(credentials.peer, port)) is not None), None)
        except OSError as error:
            why = f"the kernel does not say which user calls ({error}); {_INSTEAD}"
            raise self._unknown(why, credentials.peer) from None
        if user is None or not users.allows(Peer(0, user, -1)):
            who = "a process" if user is None else f"user {user}"
            why = f"loopback is open to the server's own user, and {who} calls; {_INSTEAD}"
            raise self._unknown(why, credentials.peer)

    def _unknown(self, why: str, peer: str) -> Refusal:
        """The refusal of an unknown caller, of which the log tells once a minute."""
        self._unknown_callers += 1
        now = time.monotonic()
        if now >= self._log_at:
            get_log().warning("caller_refused", why=why, peer=peer, refused=self._unknown_callers)
            self._unknown_callers, self._log_at = 0, now + _LOG_EVERY_S
        return Refusal(Reason.UNAUTHENTICATED, why)

    # -- what they may do ----------------------------------------------------------------------------------------------

    def permit(self, verb: str, request: Any) -> None:
        """Refusal PERMISSION_DENIED unless the current caller may send this request. What it does is recorded under
        the caller's name.
        """
        caller = current_caller()
        if caller.roles is not None:
            self._check(caller, verb, request)
        if caller.name:
            _sign(request, caller)
            if verb in CHANGES:
                partition_id, task, snapshot = (_field(request, name) for name in ("partition_id", "task", "snapshot"))
                log, name = get_log(), caller.name
                log.info("changed_by", caller=name, verb=verb, partition_id=partition_id, task=task, snapshot=snapshot)

    def _check(self, caller: Caller, verb: str, request: Any) -> None:
        partition_id = _field(request, "partition_id")
        held_id = _field(request, "claim_id") or _field(request, "reservation_id")
        found = self._partition_of(held_id) if held_id else None
        verbs = [verb, WRITE_BACK] if verb == "PutSamples" and _field(request, "claim_id") else [verb]
        if verb == "ListPartitions" or (held_id and found is None):
            # The answer has those that the caller may look at; the core refuses an id that is not held any more.
            allowed = any(map(caller.may_somewhere, verbs))
        else:
            places = {found or partition_id, partition_id or found or ""}
            allowed = all(any(caller.may(one, place) for one in verbs) for place in places)
        if not allowed:
            raise _denied(caller, verb, partition_id or found or "")


OPEN_GATE = Gate(None, lambda held_id: None)
"""Where nothing is restricted."""


def bearer_token(authorization: str | None) -> str | None:
    """The token of an authorization header; None if there is none of this kind."""
    text = authorization or ""
    return text[len(_BEARER) :].strip() if text[: len(_BEARER)].lower() == _BEARER else None


def _field(request: Any, name: str) -> str:
    value = getattr(request, name, "")
    return value if isinstance(value, str) else ""


def _sign(request: Any, caller: Caller) -> None:
    for name in ("caller", "client_name"):
        if hasattr(request, name):
            setattr(request, name, caller.named(getattr(request, name)))


def _denied(caller: Caller, verb: str, partition_id: str) -> Refusal:
    where = f"in partition {partition_id!r}" if partition_id else "on the whole server"
    roles = " or ".join(roles_for(verb))
    message = f"{caller.name or 'a caller at a Unix socket'} may not use {verb} {where}: that takes the role {roles}"
    return Refusal(Reason.PERMISSION_DENIED, message, partition_id=partition_id, verb=verb)
