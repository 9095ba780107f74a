"""
Back-pressure of writes.

``await send()`` waits for the client's socket on uvicorn, granian and hypercorn. On Daphne it returns at once and the
bytes pile up in memory; but its ``send`` is a ``functools.partial`` whose first argument is the Twisted request, and a
push producer registered there is told when the socket is full and when it isn't. Where ``send`` has been wrapped there
is nothing to ask, and writes go on as they are.
"""

import asyncio
from functools import partial
from typing import Any


class Flow:
    """
    Whether a socket takes more: a push producer in the sense of ``twisted.internet.interfaces.IPushProducer``.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._writable = asyncio.Event()
        self._writable.set()
        request.registerProducer(self, True)  # noqa: FBT003  # Twisted's signature: a push producer

    async def wait(self) -> None:
        """
        Return when the socket takes more, or is gone.
        """
        await self._writable.wait()

    def close(self) -> None:
        """
        Let go of the request; it must be done before the response's last message.
        """
        request, self._request = self._request, None
        # A connection that is lost has let go of the request already.
        if request is not None and request.channel is not None:
            request.unregisterProducer()
        self._writable.set()

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


class BoundedSend:
    """
    A ``send`` that waits for the client's socket on every server, and not for ever: past its time the connection is
    cut, and what streams into it gets an error.
    """

    def __init__(self, send: Any, *, seconds: float) -> None:
        """
        Args:
            send: the server's own.
            seconds: the time for one message.
        """
        self._send = send
        self._seconds = seconds
        self._flow = flow_of(send)
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
                if self._flow is not None:
                    await self._flow.wait()
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    self.close()
                await self._send(message)
        except TimeoutError:
            self.is_stalled = True
            abort(self._send)
            raise ConnectionError("The client takes nothing") from None

    def close(self) -> None:
        """
        Let go of the connection.
        """
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.close()


def abort(send: Any) -> None:
    """
    Cut the connection behind ``send``, whose socket takes nothing any more: the server would wait for ever to flush it.
    """
    request = send.args[0] if isinstance(send, partial) and send.args else getattr(send, "__self__", None)
    transport = getattr(request, "transport", None)
    for name in ("abort", "abortConnection"):
        cut = getattr(transport, name, None)
        if callable(cut):
            cut()
            return


def flow_of(send: Any) -> Flow | None:
    """
    The flow behind ``send``, where the server's own ``send`` doesn't wait.
    """
    if not isinstance(send, partial) or not send.args:
        return None
    request = send.args[0]
    if not hasattr(request, "registerProducer") or getattr(request, "channel", None) is None:
        return None
    try:
        return Flow(request)
    except (AttributeError, ValueError):  # another producer is there, or the connection is gone
        return None
