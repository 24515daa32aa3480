"""Decides who calls, and whether they may.

Who calls is decided before anything of a request is read, whether they may as soon as it is known which partition it
concerns. What a call does meanwhile finds its caller in its context (`current_caller`), on every transport.

A token decides if one is sent, else the certificate. Without an access file every certificate of the clients' CA may do
everything; without TLS, so may processes on loopback whose user is the server's, root, or allowed. Listeners of ours
ask who has opened a connection before they read from it. gRPC tells a call's peer, but not the address that it came in
by, so there is one where the kernel is asked, for each call. Over a Unix socket the rights of its file have decided who
is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dataplane_server.access.access_file import AccessRules
from dataplane_server.access.loopback import End, owner_of, user_of
from dataplane_server.access.peers import AllowedPeers, Peer
from dataplane_server.access.reloading import Reloaded
from dataplane_server.access.roles import CHANGES, EVERYTHING, WRITE_BACK, Caller, roles_for
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.state.answers import MAX_REQUEST_ID_BYTES
from dataplane_server.log import get_log

_BEARER = "bearer "
_PROOF_BYTES = 32
_INSTEAD = "start it with --allow-user, on a Unix socket, with --access, or with --insecure"
_LOG_EVERY_S = 60.0
_GIVEN_UP = ("claim_request_id", "reserve_request_id")
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
        owner_of: Callable[[str], str | None],
        repeats: Callable[[Any], bool],
        *,
        certificates: bool = False,
        users: AllowedPeers | None = None,
    ) -> None:
        """partition_of: the partition of a claim or a reservation. owner_of: the name of the caller of a session.
        repeats: whether a RegisterPartitionRequest changes nothing; Refusal PARTITION_DIFFERS.
        """
        self._rules = rules
        self._partition_of = partition_of
        self._owner_of = owner_of
        self._repeats = repeats
        self._certificates = certificates
        self._users = users
        self._grpc: set[End] = set()
        self._secret = secrets.token_bytes(_PROOF_BYTES)
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

    def grpc_listens(self, host: str, port: int) -> None:
        """GRPC takes calls there, too."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._grpc |= {End.of(str(place[0]), port) for *_, place in found}

    # -- who calls -----------------------------------------------------------------------------------------------------

    def at_unix_socket(self, token: str | None = None) -> Caller:
        """The caller at a Unix socket. A token may narrow what that is. Refusal UNAUTHENTICATED if it is unknown."""
        if self._rules is None:
            return EVERYTHING
        return self._rules.now().unix_sockets if token is None else self._of_token(token, "a Unix socket")

    def proof(self) -> bytes:
        """What proves the current caller's name to `proven`, as long as this server lives; empty without a name."""
        name = current_caller().name.encode()
        return hmac.digest(self._secret, name, "sha256") + name if name else b""

    def proven(self, proof: bytes) -> str:
        """The name of the caller that got a proof. Refusal UNAUTHENTICATED if it is none."""
        code, name = proof[:_PROOF_BYTES], proof[_PROOF_BYTES:]
        if not hmac.compare_digest(code, hmac.digest(self._secret, name, "sha256")):
            raise Refusal(Reason.UNAUTHENTICATED, "the caller proof was not made by this run of the server")
        return name.decode()

    def unix_sockets_write(self) -> bool:
        """Whether callers at Unix sockets have a role that stores values."""
        return any(map(self.at_unix_socket().may_somewhere, ("PutSamples", "CommitClaim")))

    def stranger(self, connection: socket.socket) -> str | None:
        """Why a process that has connected to a listener of this host is refused without an access file; None if it is
        not. Ask before anything is read: what the kernel says holds for as long as the connection is open.
        """
        if self._users is None or self.is_open or self._rules is not None:
            return None
        try:
            return self._why_not(self._users, user_of(connection))
        except OSError as error:
            return _cannot_ask(error)

    def at_connection(self, credentials: Credentials, stranger: str | None) -> Caller:
        """The caller over a connection. stranger: as `stranger` found. Refusal UNAUTHENTICATED as `at_port`."""
        if self._rules is not None:
            return self._known(self._rules.now(), credentials)
        if stranger is not None:
            raise self._unknown(stranger, credentials.peer)
        return EVERYTHING

    def at_port(self, credentials: Credentials) -> Caller:
        """The caller over gRPC on TCP. Refusal UNAUTHENTICATED says what is missing, but nothing of what was sent."""
        if self._users is None or self.is_open or self._rules is not None:
            return self.at_connection(credentials, None)
        try:
            why = self._why_not(self._users, self._user_over_grpc(End.of_grpc(credentials.peer)))
        except (OSError, ValueError) as error:
            why = _cannot_ask(error)
        return self.at_connection(credentials, why)

    def _user_over_grpc(self, peer: End) -> int | None:
        """The user whose process calls from there; None if it has begun to close, or if the call can have come in by
        another address: a port may have a connection to each, and one that is closed leaves no trace.
        """
        locals_ = [local for local in self._grpc if local.address.version == peer.address.version]
        owner = owner_of(peer, locals_[0]) if len(locals_) == 1 else None
        return owner.user if owner is not None and owner.is_connected else None

    def _why_not(self, users: AllowedPeers, user: int | None) -> str | None:
        if user is not None and users.allows(Peer(0, user, -1)):
            return None
        who = "a process" if user is None else f"user {user}"
        return f"loopback is open to the server's own user, and {who} calls; {_INSTEAD}"

    def _known(self, rules: AccessRules, credentials: Credentials) -> Caller:
        if credentials.token is not None:
            return self._of_token(credentials.token, credentials.peer)
        for name in credentials.certificate or ():
            if (caller := rules.certificates.get(name)) is not None:
                return caller
        if credentials.certificate is not None:
            names = ", ".join(credentials.certificate)
            why = f"the access file knows no name in the client's certificate ({names})"
        else:
            why = "the call has no token; pass connect(credentials=...), or set DATAPLANE_TOKEN_FILE"
        raise self._unknown(why, credentials.peer)

    def _of_token(self, token: str, peer: str) -> Caller:
        assert self._rules is not None  # noqa: S101  # both callers have looked
        try:
            digest = hashlib.sha256(token.encode()).hexdigest()
        except UnicodeEncodeError:  # aiohttp keeps bytes that are not UTF-8 as surrogates
            raise self._unknown("the token is not UTF-8", peer) from None
        rules = self._rules.now()
        caller, why = rules.tokens.get(digest), "the token is unknown, or has ended"
        if caller is None and rules.jwt is not None and (subject := rules.jwt.subject(token)) is not None:
            caller, why = rules.subjects.get(subject), f"the access file does not know the token's subject {subject!r}"
        if caller is None:
            raise self._unknown(why, peer)
        return caller

    def _unknown(self, why: str, peer: str) -> Refusal:
        """The refusal of an unknown caller, of which the log tells once a minute."""
        self._unknown_callers += 1
        now = time.monotonic()
        if now >= self._log_at:
            get_log().warning("caller_refused", why=why, peer=peer, refused=self._unknown_callers)
            self._unknown_callers, self._log_at = 0, now + _LOG_EVERY_S
        return Refusal(Reason.UNAUTHENTICATED, why)

    # -- what they may do ----------------------------------------------------------------------------------------------

    def permit(self, verb: str, request: Any, owner: str = "") -> None:
        """Refusal PERMISSION_DENIED unless the current caller may send this request. What it does is recorded under
        the caller's name. owner: of the request, where the caller has no name.
        """
        caller = current_caller()
        if caller.roles is not None:
            self._check(caller, verb, request)
            self._check_session(caller, verb, request)
        if self._rules is not None:
            _own_request(request, caller.name or owner or self._owner_of(_field(request, "session_id")) or "")
        if caller.name:
            _sign(request, caller)
            if verb in CHANGES and caller.may_somewhere(verb):
                partition_id, task, snapshot = (_field(request, name) for name in ("partition_id", "task", "snapshot"))
                log, name = get_log(), caller.name
                log.info("changed_by", caller=name, verb=verb, partition_id=partition_id, task=task, snapshot=snapshot)

    def _check(self, caller: Caller, verb: str, request: Any) -> None:
        partition_id = _field(request, "partition_id")
        held_id = _field(request, "claim_id") or _field(request, "reservation_id")
        found = self._partition_of(held_id) if held_id else None
        verbs = [verb, WRITE_BACK] if verb == "PutSamples" and _field(request, "claim_id") else [verb]
        places = {found or partition_id, partition_id or found or ""}
        if verb == "ListPartitions" or (held_id and places == {""}) or _gives_up(request):
            # The answer has those that the caller may look at; the core refuses an id that is not held any more; the
            # request that is given up is the caller's own.
            allowed = any(map(caller.may_somewhere, verbs))
        else:
            allowed = all(any(caller.may(one, place) for one in verbs) for place in places)
        if not allowed and not (verb == "RegisterPartition" and self._only_repeats(caller, request)):
            raise _denied(caller, verb, partition_id or found or "")

    def _only_repeats(self, caller: Caller, request: Any) -> bool:
        """Whether a registration changes nothing. Programs that share a partition all register it, and the answer
        says no more than a description, which the caller may read.
        """
        return caller.may("GetPartition", request.partition_id) and self._repeats(request)

    def _check_session(self, caller: Caller, verb: str, request: Any) -> None:
        """Refuse a session of another caller. A client at a Unix socket makes calls there without the token of its
        stream, so there an id is enough for all but the stream.
        """
        session_id = _field(request, "session_id")
        owner = self._owner_of(session_id) if session_id else None
        is_own = owner in (None, caller.name) or (not caller.name and verb != "Session")
        if not is_own and not caller.runs_the_server:
            who = caller.name or "a caller at a Unix socket"
            message = f"{who} may not use session {session_id!r}: another caller has opened it"
            raise Refusal(Reason.PERMISSION_DENIED, message, verb=verb)


OPEN_GATE = Gate(None, lambda held_id: None, lambda session_id: None, lambda request: False)
"""Where nothing is restricted."""


def bearer_token(authorization: str | None) -> str | None:
    """The token of an authorization header; None if there is none of this kind."""
    text = authorization or ""
    return text[len(_BEARER) :].strip() if text[: len(_BEARER)].lower() == _BEARER else None


def _cannot_ask(error: Exception) -> str:
    return f"the kernel does not say which user calls ({error}); {_INSTEAD}"


def _field(request: Any, name: str) -> str:
    value = getattr(request, name, "")
    return value if isinstance(value, str) else ""


def _gives_up(request: Any) -> bool:
    """Whether a request names another one, whose answer its caller will not take."""
    return any(_field(request, name) for name in _GIVEN_UP)


def _sign(request: Any, caller: Caller) -> None:
    for name in ("caller", "client_name"):
        if hasattr(request, name):
            setattr(request, name, caller.named(getattr(request, name)))


def _own_request(request: Any, owner: str) -> None:
    """Give request ids a prefix of their owner, so that equal ids of different callers are different requests. At a
    local socket the owner is the caller whose token the client attached with, or who opened the session, because a
    client may repeat or undo over gRPC, with its token, what it sent there. An id of a wrong length stays as it is; the
    core refuses it.
    """
    for name in ("request_id", *_GIVEN_UP):
        sent = _field(request, name).encode()
        if 1 <= len(sent) <= MAX_REQUEST_ID_BYTES:
            code = hashlib.blake2b(sent, digest_size=12, key=hashlib.sha256(owner.encode()).digest()).hexdigest()
            own = f"{code}:".encode() + sent
            setattr(request, name, own[:MAX_REQUEST_ID_BYTES].decode(errors="ignore"))


def _denied(caller: Caller, verb: str, partition_id: str) -> Refusal:
    where = f"in partition {partition_id!r}" if partition_id else "on the whole server"
    roles = " or ".join(map(repr, roles_for(verb)))
    message = f"{caller.name or 'a caller at a Unix socket'} needs role {roles} for {verb} {where}"
    return Refusal(Reason.PERMISSION_DENIED, message, partition_id=partition_id, verb=verb)
