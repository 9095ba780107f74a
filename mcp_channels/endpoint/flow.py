"""
Back-pressure of writes: the connection behind ``send``, as far as the server shows it.

``await send()`` waits for the client's socket on uvicorn, granian and hypercorn, but only once their own buffers are
full, and so is the kernel's. On Daphne it returns at once and the bytes pile up in memory; but its ``send`` is a
``functools.partial`` whose first argument is the Twisted request, and a push producer registered there is told when the
socket is full and when it isn't. On uvicorn and hypercorn ``send`` is a method of an object that leads to the
transport. granian's leads nowhere; its connections are known by their addresses.

While a stream is open, the buffers on the way to its client are kept small: it costs little memory if it stops reading,
and if it reads slowly it isn't told what is long out of date. Where ``send`` has been wrapped there is nothing to ask,
and writes go on as they are; the same under HTTP/2, where a connection is not the stream's own.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from mcp_channels.endpoint import sockets
from mcp_channels.listen import flow

TWISTED_BUFFER: Final = 8 * 1024
"""Bytes past which Twisted says that a socket is full. All goes through its buffer, so none would be too few."""

_limited_ports: set[int] = set()


class Flow(flow.Flow):
    """
    The connection of a response. This one is not known, and neither waits nor can be cut.
    """

    __slots__ = ()

    def close(self) -> None:
        """
        Leave the connection as it was found; to be done before the response's last message.
        """

    def abort(self) -> bool:
        """
        Cut the connection, whose socket takes nothing any more: the server would wait for ever to flush it. Returns
        whether there was a way to.
        """
        return False


class TwistedFlow(Flow):
    """
    The connection behind a Twisted request: a push producer in the sense of
    ``twisted.internet.interfaces.IPushProducer``.
    """

    __slots__ = ("_connection", "_request", "_transport", "_writable")

    piece = 20 * 1024

    def __init__(self, request: Any) -> None:
        self._request = request
        self._transport = request.channel.transport
        self._connection: Any = None
        self._writable = asyncio.Event()
        self._writable.set()
        request.registerProducer(self, True)  # noqa: FBT003  # Twisted's signature: a push producer
        with suppress(AttributeError):
            self._connection = self._transport.getHandle()
            self._transport.bufferSize = TWISTED_BUFFER
        sockets.limit_unsent(self._connection)

    async def wait(self) -> None:
        """
        See Flow.wait().
        """
        await self._writable.wait()

    def taken(self) -> int | None:
        """
        See Flow.taken().
        """
        return sockets.acknowledged(self._connection)

    def close(self) -> None:
        """
        See Flow.close().
        """
        request, self._request = self._request, None
        # A connection that is lost has let go of the request already.
        if request is not None and request.channel is not None:
            request.unregisterProducer()
            with suppress(AttributeError):
                del self._transport.bufferSize
            sockets.limit_unsent(self._connection, 0)
        self._writable.set()

    def abort(self) -> bool:
        """
        See Flow.abort().
        """
        self._transport.abortConnection()
        return True

    def pauseProducing(self) -> None:  # noqa: N802  # Twisted's name
        """
        The socket is full.
        """
        self._writable.clear()

    def resumeProducing(self) -> None:  # noqa: N802  # Twisted's name
        """
        The socket takes more.
        """
        self._writable.set()

    def stopProducing(self) -> None:  # noqa: N802  # Twisted's name
        """
        The client is gone.
        """
        self._request = None
        self._writable.set()


class TransportFlow(Flow):
    """
    The connection behind an asyncio transport. A transport that holds bytes is full: the kernel took no more.
    """

    __slots__ = ("_connection", "_drain", "_transport", "piece")

    def __init__(self, transport: Any, *, drain: Callable[[], Awaitable[None]] | None) -> None:
        """
        Args:
            transport: an ``asyncio.Transport``.
            drain: waits until it is not full; None where ``send`` has waited for that when it returns.
        """
        self._transport = transport
        self._drain = drain
        # hypercorn holds what it writes more than once until the socket has taken it.
        self.piece = 8 * 1024 if drain is None else 20 * 1024
        self._connection = transport.get_extra_info("socket")
        # Not 0: a TLS transport that holds nothing would be full as well.
        transport.set_write_buffer_limits(high=1)
        sockets.limit_unsent(self._connection)

    async def wait(self) -> None:
        """
        See Flow.wait().
        """
        if self._drain is not None:
            await self._drain()

    def taken(self) -> int | None:
        """
        See Flow.taken().
        """
        return sockets.acknowledged(self._connection)

    def close(self) -> None:
        """
        See Flow.close().
        """
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits()
            sockets.limit_unsent(self._connection, 0)

    def abort(self) -> bool:
        """
        See Flow.abort().
        """
        sockets.reset_at_close(self._connection)
        self._transport.abort()
        return True


class HiddenFlow(Flow):
    """
    The connection of a request whose server doesn't show it: known by its client's address, if it is looked for.
    """

    __slots__ = ("_peer",)

    # granian takes up to twenty writes that wait for the socket.
    piece = 1024

    def __init__(self, peer: tuple[str, int]) -> None:
        self._peer = peer

    def taken(self) -> int | None:
        """
        See Flow.taken().
        """
        # Asked for while a write waits alone: few streams are ever looked for.
        connection = sockets.find(self._peer)
        if connection is None:
            return None
        with connection:
            return sockets.acknowledged(connection)

    def abort(self) -> bool:
        """
        See Flow.abort().
        """
        connection = sockets.find(self._peer)
        if connection is None:
            return False
        sockets.reset_at_close(connection)
        with connection, suppress(OSError):  # the client is gone
            connection.shutdown(socket.SHUT_RDWR)
        return True


class BoundedSend:
    """
    A ``send`` that waits for the client's socket on every server, and not for ever: past its time the connection is
    cut, and what streams into it gets an error.
    """

    def __init__(self, send: Any, flow: Flow, *, seconds: float) -> None:
        """
        Args:
            send: the server's own.
            flow: the flow behind it; the caller closes it.
            seconds: the time for one message.
        """
        self._send = send
        self._seconds = seconds
        self._flow = flow
        self.is_stalled = False
        """Whether the client took nothing for too long."""

    async def __call__(self, message: Any) -> None:
        """
        Send a message.

        Raises:
            ConnectionError: the client takes nothing.
        """
        try:
            async with asyncio.timeout(self._seconds):
                await self._flow.wait()
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    self._flow.close()
                await self._send(message)
        except TimeoutError:
            self.is_stalled = True
            self._flow.abort()
            raise ConnectionError("The client takes nothing") from None


def flow_of(scope: Any, send: Any) -> Flow:
    """
    The flow behind ``send``.

    Args:
        scope: the ASGI scope of the request, or what is left of it: ``http_version``, ``client`` and ``server``.
        send: the ASGI server's.
    """
    if not scope.get("http_version", "").startswith("1"):
        return Flow()
    owner = send.args[0] if isinstance(send, partial) and send.args else getattr(send, "__self__", None)
    try:
        if hasattr(owner, "registerProducer"):
            return TwistedFlow(owner)
        if type(owner).__module__.startswith("granian"):
            return _hidden(scope)
        transport = _transport_of(owner)
        if transport is None:
            return Flow()
        return TransportFlow(transport, drain=getattr(getattr(owner, "flow", None), "drain", None))
    except (AttributeError, KeyError, TypeError, ValueError):  # it is not as expected, or gone, or has a producer
        return Flow()


def _transport_of(owner: Any) -> Any | None:
    """
    uvicorn: request.transport. hypercorn: stream.send of protocol.send of server.writer.transport.
    """
    for _ in range(3):
        transport = getattr(getattr(owner, "writer", owner), "transport", None)
        if hasattr(transport, "set_write_buffer_limits"):
            return transport
        owner = getattr(getattr(owner, "send", None), "__self__", None)
    return None


def _hidden(scope: Any) -> Flow:
    port = int(scope["server"][1])
    if port not in _limited_ports:
        _limited_ports.add(port)
        sockets.limit_unsent_at(port)
    host, number = scope["client"]
    return HiddenFlow((host, int(number)))
