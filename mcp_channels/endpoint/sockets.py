"""
TCP options of the connections behind requests, and the connection of a request whose server doesn't show it.

A kernel's send buffer takes megabytes for a client that reads slowly: what it hears then is old by all of them, and the
writes behind them make no progress for hours. So little is kept unsent there (``TCP_NOTSENT_LOWAT``); changes wait in
the stream's set instead, where a newer one costs nothing.

Where the operating system has no such option, sockets stay as they are.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

UNSENT: Final = 8 * 1024
"""Bytes in the kernel that are not on their way to the client, past which a socket takes no more."""

FIND_INTERVAL: Final = 1.0
"""The least seconds between two searches of the process's descriptors."""

_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None) if os.uname().sysname == "Linux" else None
# struct tcp_info of linux/tcp.h: 8 bytes, 24 words of 32 bits, two of 64, and then tcpi_bytes_acked.
_BYTES_ACKED: Final = struct.Struct("=120xQ")
_DESCRIPTORS: Final = "/proc/self/fd"


def limit_unsent(connection: Any, size: int = UNSENT) -> None:
    """
    Let ``connection`` (a socket) keep little unsent. 0 gives it the system's own limit back.
    """
    if _NOTSENT_LOWAT is not None:
        with suppress(OSError, AttributeError):  # no TCP socket, or not a whole one, or closed
            connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, size)


def reset_at_close(connection: Any) -> None:
    """
    Let ``connection`` (a socket) throw away at its end what its peer has not taken; the kernel would go on offering it,
    and the peer would not hear of the end.
    """
    with suppress(OSError, AttributeError):  # no socket, or not a whole one, or closed
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def acknowledged(connection: Any) -> int | None:
    """
    How many bytes the peer of ``connection`` (a socket) has acknowledged; None where the system doesn't say.
    """
    if _INFO is None:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _INFO, _BYTES_ACKED.size)
        return int(_BYTES_ACKED.unpack(info)[0])
    except (OSError, AttributeError, struct.error):  # no TCP socket, or closed, or an old kernel
        return None


def limit_unsent_at(port: int) -> None:
    """
    Let the sockets at a local port of this process keep little unsent, and those that they accept: these inherit it.
    """
    for connection in _sockets():
        with suppress(OSError):
            if connection.getsockname()[1] == port:
                limit_unsent(connection)


def find(peer: tuple[str, int]) -> socket.socket | None:
    """
    The connection of this process to ``peer``, an address and a port, by a descriptor that the caller must close. None
    if it isn't found; it is searched for once in a while.
    """
    global _found_at
    descriptor = _found.get(peer)
    if descriptor is not None and (connection := _open(descriptor)) is not None:
        # The number may be another connection's by now.
        if _peer(connection) == peer:
            return connection
        connection.close()
    now = asyncio.get_running_loop().time()
    if now - _found_at < FIND_INTERVAL:
        return None
    _found.clear()
    _found.update(_connections())
    _found_at = now
    descriptor = _found.get(peer)
    return None if descriptor is None else _open(descriptor)


_found: dict[tuple[str, int], int] = {}
_found_at = float("-inf")


def _connections() -> Iterator[tuple[tuple[str, int], int]]:
    for descriptor in _descriptors():
        connection = _open(descriptor)
        if connection is not None:
            with closing(connection):
                peer = _peer(connection)
            if peer is not None:
                yield peer, descriptor


def _sockets() -> Iterator[socket.socket]:
    for descriptor in _descriptors():
        connection = _open(descriptor)
        if connection is not None:
            with closing(connection):
                yield connection


def _descriptors() -> list[int]:
    try:
        return [int(path.name) for path in Path(_DESCRIPTORS).iterdir()]
    except OSError:  # another system than Linux
        return []


def _open(descriptor: int) -> socket.socket | None:
    """
    A socket object of its own for a descriptor; None if that is no internet socket.
    """
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        return connection
    connection.close()
    return None


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return None
    return str(host), int(port)
