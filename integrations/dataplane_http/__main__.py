"""`python -m dataplane_http`, and the command `dataplane-http`: serves the gateway until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import uvicorn

    from dataplane_client.errors import InvalidArgumentError
    from dataplane_http.app import new_app
    from dataplane_http.callers import Callers
    from dataplane_http.connections import Connection, Places
    from dataplane_http.front import Door, Front, is_loopback
except ModuleNotFoundError as error:
    sys.exit(f"dataplane-http: {error}; pip install 'rl-dataplane[http]'")

_LAST_ANSWERS_S = 1
_LOOK_S = 1.0
_PAUSE_S = 0.1


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve JSON over HTTP for a data plane."""
    parser = argparse.ArgumentParser("dataplane-http", description=main.__doc__, allow_abbrev=False)
    for flag, metavar, default, text in (
        ("--server", "ADDRESS", os.environ.get("DATAPLANE_SERVER"), "of the data plane (default: DATAPLANE_SERVER)"),
        ("--listen", "HOST:PORT", "127.0.0.1:9465", "where to serve (default: %(default)s)"),
        ("--tls-cert", "FILE", None, "certificate for TLS, in PEM (default: no TLS)"),
        ("--tls-key", "FILE", None, "its key"),
        ("--tls-client-ca", "FILE", None, "CA of the certificates that callers must show (default: none)"),
    ):
        parser.add_argument(flag, metavar=metavar, default=default, help=text)
    parser.add_argument(
        "--tokens", action="store_true", help="refuse requests without a token, for a server with --access"
    )
    parser.add_argument("--insecure", action="store_true", help="serve other hosts and users without TLS or tokens")
    parser.add_argument("--allow-user", metavar="ID", type=int, action="append", default=[], help="of this host")
    parser.add_argument("--fd", metavar="N", type=int, help="a socket that listens at --listen already")
    parser.add_argument("--until-stdin-ends", action="store_true", help="stop when standard input ends")
    flags = parser.parse_args(arguments)
    host, colon, port = flags.listen.rpartition(":")
    host = host.strip("[]")
    if not (host and colon and port.isdigit() and int(port) < 1 << 16):
        parser.error(f"--listen: {flags.listen!r} is not host:port")
    if flags.server is None:
        parser.error("--server: give the address of the data plane, or set DATAPLANE_SERVER")
    gateway = _gateway_of(flags, host, parser)
    try:
        listener = _listener(host, int(port)) if flags.fd is None else socket.socket(fileno=flags.fd)
    except OSError as error:
        parser.error(f"--listen: cannot listen at {flags.listen}: {error.strerror}")
    if flags.until_stdin_ends:
        threading.Thread(target=_stop_at_end_of_stdin, args=(gateway,), daemon=True).start()
    address = f"{flags.listen.rpartition(':')[0]}:{listener.getsockname()[1]}"
    print(json.dumps({"event": "serving", "http": address}), flush=True)  # noqa: T201  # a command's output
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises it once more at the end
    gc.freeze()  # imported modules are no garbage; to look at them takes a second, at the end too
    gateway.run(sockets=[listener])


def _gateway_of(flags: argparse.Namespace, host: str, parser: argparse.ArgumentParser) -> Gateway:
    if bool(flags.tls_cert) != bool(flags.tls_key) or (flags.tls_client_ca and not flags.tls_cert):
        parser.error("TLS needs both --tls-cert and --tls-key")
    known = flags.insecure or (flags.tls_cert and (flags.tokens or flags.tls_client_ca))
    if not known and not is_loopback(host):
        parser.error(
            f"--listen: {flags.listen!r} can be reached from other hosts; give --tls-cert and --tls-key, and --tokens "
            "or --tls-client-ca, or pass --insecure"
        )
    closed = flags.insecure or flags.tokens or flags.tls_client_ca
    door = Door(host, flags.tokens, None if closed else frozenset(flags.allow_user))
    tls = {"ssl_certfile": flags.tls_cert, "ssl_keyfile": flags.tls_key, "ssl_ca_certs": flags.tls_client_ca}
    tls["ssl_cert_reqs"] = ssl.CERT_REQUIRED if flags.tls_client_ca else ssl.CERT_NONE
    try:
        gateway = Gateway(flags.server, door, **tls)
        gateway.config.load()
    except InvalidArgumentError as error:
        parser.error(f"--server: {error}")
    except OSError as error:
        parser.error(f"--tls-cert, --tls-key, --tls-client-ca: {error}")
    return gateway


class Gateway(uvicorn.Server):
    """The gateway on uvicorn: `run` or `serve` it with sockets."""

    def __init__(self, server: str, door: Door, **tls: Any) -> None:
        self._callers, self._places = Callers(server), Places()
        self._protocol = type("PlacedConnection", (Connection,), {"places": self._places})
        app = Front(new_app(self._callers), self._callers, door)
        config = uvicorn.Config(
            app,
            http=self._protocol,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[("Connection", "close")],
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
            **tls,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # its listeners would make handshakes at once, however many come
        self._tasks = [asyncio.create_task(self._accept(listener)) for listener in sockets or []]
        if self.config.ssl is not None:
            self._tasks.append(asyncio.create_task(self._reload()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._places.close()
        await self._callers.close()  # calls that wait end, and are told to come again
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(self.config.backlog)
        while True:
            try:
                peer, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:  # noqa: PERF203  # mostly, no descriptor is left until another connection closes
                await asyncio.sleep(_PAUSE_S)
            else:
                self._protocol(self.config, self.server_state, self.lifespan.state).come(peer)
                await asyncio.sleep(0)  # while more of them come, others go on

    async def _reload(self) -> None:
        """Take a certificate, key or CA of callers that was replaced, for new connections."""
        named = (self.config.ssl_certfile, self.config.ssl_keyfile, self.config.ssl_ca_certs)
        files = [Path(str(name)) for name in named if name]
        before = [file.stat().st_mtime_ns for file in files]
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(OSError):  # half-written: the last one stays
                now = [file.stat().st_mtime_ns for file in files]
                if now != before:
                    self.config.ssl, before = _loaded(self.config), now


def _loaded(config: uvicorn.Config) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(config.ssl_certfile), config.ssl_keyfile, "")  # else OpenSSL asks for a pass phrase
    if config.ssl_ca_certs:
        context.load_verify_locations(config.ssl_ca_certs)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _listener(host: str, port: int) -> socket.socket:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    both = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, dualstack_ipv6=both)


def _stop_at_end_of_stdin(gateway: Gateway) -> None:
    while os.read(0, 1 << 10):  # not sys.stdin, whose lock this thread would hold when the interpreter ends
        pass
    gateway.should_exit = True


if __name__ == "__main__":
    main()
