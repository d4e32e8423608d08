"""The sockets to listen on: host and port or a unix socket, a port for each bound model, and the certificate."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
import stat
from pathlib import Path

from runtime.errors import ConfigurationError
from runtime.notation import parse_address
from runtime.registry import ServerSettings

BACKLOG = 2048


class Listening:
    """Every socket of one server. Made at once, or not at all."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises ConfigurationError where an address can't be had or the certificate is no good."""
        check_certificate(settings)
        self.certificate, self.key, self.uds = settings.tls_certificate, settings.tls_key, settings.uds
        self.models: dict[int, str] = {}
        """Which model a port is for."""
        with contextlib.ExitStack() as opened:
            first = listen_at_path(self.uds) if self.uds else listen(settings.host, settings.port)
            self.sockets = [opened.enter_context(first)]
            for address, model in settings.bind_model.items():
                host, port = parse_address(address)
                self.sockets.append(opened.enter_context(listen(host or settings.host, port)))
                self.models[self.sockets[-1].getsockname()[1]] = model
            opened.pop_all()

    @property
    def address(self) -> tuple[str, int]:
        """Host and real port of the first socket; a unix socket's path and 0."""
        if self.uds:
            return self.uds, 0
        host, port, *_ = self.sockets[0].getsockname()
        return host, port

    def remove_path(self) -> None:
        """Take the unix socket's name away, if there is one."""
        if self.uds:
            Path(self.uds).unlink(missing_ok=True)


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises ConfigurationError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"can't listen on {host} port {port}: {error.strerror}") from error
    listener.setblocking(False)
    # Inherited by every connection: asyncio sets it only on sockets that name their protocol, which these don't,
    # and without it an answer's second packet waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def listen_at_path(path: str) -> socket.socket:
    """A listening unix socket; one that a dead process left there is replaced. Raises ConfigurationError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        remove_dead_socket(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"can't listen on {path}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def remove_dead_socket(path: str) -> None:
    """Unlink a socket on which nobody listens."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def check_certificate(settings: ServerSettings) -> None:
    """Raises ConfigurationError where certificate and key can't be read or don't belong together."""
    if settings.tls_certificate is None:
        return
    try:
        # An encrypted key would ask for its password on the terminal; an empty one is refused instead.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key, lambda: "")
    except OSError as error:
        raise ConfigurationError(f"tls_certificate and tls_key can't be used: {error.strerror or error}") from error


def is_exposed(settings: ServerSettings) -> bool:
    """Whether other machines may reach the server without a key."""
    keys = (settings.api_key, settings.api_keys, settings.keys_file)
    if any(key is not None for key in keys):
        return False
    bound = [parse_address(address)[0] or settings.host for address in settings.bind_model]
    return not all(map(is_loopback, bound if settings.uds else [settings.host, *bound]))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address; of a name that is no address only `localhost` is sure to."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
