"""
Noticing the ends that the SDK's client keeps to itself.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self

import httpx2

from mcp_channels.client.sdk import TransportStreams


class Watched(AbstractAsyncContextManager[TransportStreams]):
    """
    A transport, which tells when there is nothing more to be read: the SDK's client goes on, and fails every call.
    """

    def __init__(self, transport: AbstractAsyncContextManager[TransportStreams], on_end: Callable[[], None]) -> None:
        self._transport = transport
        self._on_end = on_end

    async def __aenter__(self) -> TransportStreams:
        reading, writing = await self._transport.__aenter__()
        return _Reading(reading, self._on_end), writing

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._transport.__aexit__(*error)


class _Reading:
    """
    The messages of a transport.
    """

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        # The SDK looks for more than its protocol names.
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        result: bool | None = await self._stream.__aexit__(*error)
        return result


class WatchedBody(httpx2.AsyncByteStream):
    """
    A stream of events, which tells when it is over, and whether its events had ids.
    """

    def __init__(self, stream: Any, on_end: "OnEnd") -> None:
        self._stream = stream
        self._on_end = on_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_resumable, last = False, b"\n"
        try:
            async for chunk in self._stream:
                # A line may be parted by the network.
                is_resumable = is_resumable or b"\nid:" in (last + chunk).replace(b"\r", b"\n")
                last = (last + chunk)[-4:]
                yield chunk
        finally:
            self._on_end(is_resumable=is_resumable)

    async def aclose(self) -> None:
        """
        See httpx2.AsyncByteStream.
        """
        await self._stream.aclose()


class OnEnd(Protocol):
    """
    Called at the end of a stream.
    """

    def __call__(self, *, is_resumable: bool) -> None: ...
