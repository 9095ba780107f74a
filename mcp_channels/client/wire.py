"""
One listen request over Streamable HTTP (MCP 2026-07-28 basic/patterns/subscriptions), up to the end of its stream.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any, Final

import httpx2

from mcp_channels.client.events import Acknowledged, Closed, Event, Notification

PROTOCOL_VERSION: Final = "2026-07-28"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"

logger = logging.getLogger("mcp_channels.client")

_ids = count(1)


class ListenRefusedError(Exception):
    """
    The server answered a listen request with an error.
    """

    def __init__(self, status: int, message: str, *, code: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status."""
        self.code = code
        """The JSON-RPC error's code, if there was one."""
        self.retry_after = retry_after
        """Seconds after which the server said to come back."""

    @property
    def is_passing(self) -> bool:
        """
        Whether the same request may succeed later.
        """
        return self.status in (408, 425, 429) or self.status >= 500


def _client_info() -> dict[str, str]:
    try:
        return {"name": "mcp-channels", "version": version("mcp-channels")}
    except PackageNotFoundError:
        return {"name": "mcp-channels", "version": "0"}


async def listen(
    http: httpx2.AsyncClient, url: str, notifications: Mapping[str, Any], *, ack_timeout: float
) -> AsyncIterator[Event]:
    """
    Open one stream, and yield its ``Acknowledged``, its ``Notification``s and, always last, its ``Closed``.

    Args:
        http: the client to send with; it carries the credentials.
        url: the endpoint.
        notifications: the filter.
        ack_timeout: seconds to wait for the acknowledgment.

    Raises:
        ListenRefusedError: the server answered with an error.
    """
    request_id = f"listen-{next(_ids)}"
    request = http.build_request("POST", url, json=_body(request_id, notifications), headers=_headers())
    stream = _Stream(request_id)
    try:
        async with asyncio.timeout(ack_timeout) as deadline:
            response = await http.send(request, stream=True)
            try:
                await _check(response)
                async for sse in httpx2.EventSource(response):
                    for event in stream.read(sse.data):
                        if isinstance(event, Acknowledged):
                            deadline.reschedule(None)
                        yield event
                    if stream.is_over:
                        break
            finally:
                await response.aclose()
    except TimeoutError:
        stream.failure = f"not acknowledged within {ack_timeout:g} s"
    except httpx2.HTTPError as error:
        stream.failure = str(error) or type(error).__name__
    yield stream.closed()


class _Stream:
    """
    What has been read of one stream.
    """

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.honoured: Mapping[str, Any] | None = None
        self.reason: str | None = None
        self.failure = "connection lost"
        self.is_over = False

    def closed(self) -> Closed:
        # Either of cancelled and the result is a server's word that it ended the stream.
        return Closed(self.failure if self.reason is None else self.reason, graceful=self.reason is not None)

    def read(self, data: str) -> list[Event]:
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            logger.warning("A message that is no JSON was ignored")
            return []
        if not isinstance(message, dict):
            return []
        if "method" in message:
            params = message.get("params")
            return self._read_notification(str(message["method"]), params if isinstance(params, dict) else {})
        if message.get("id") == self.id and type(message["id"]) is type(self.id):
            self.is_over = True
            error = message.get("error")
            if isinstance(error, dict):
                self.failure = str(error.get("message", "error"))
            else:
                self.reason = self.reason or "complete"
        return []

    def _read_notification(self, method: str, params: dict[str, Any]) -> list[Event]:
        if method == "notifications/cancelled":
            if params.get("requestId") == self.id:
                self.reason = str(params.get("reason", "cancelled"))
            return []
        meta = params.get("_meta")
        if not isinstance(meta, dict) or meta.get(SUBSCRIPTION_ID) != self.id:
            logger.warning("A %s of another subscription was ignored", method)
            return []
        if method == "notifications/subscriptions/acknowledged":
            if self.honoured is not None:
                return []
            honoured = params.get("notifications")
            self.honoured = honoured if isinstance(honoured, dict) else {}
            return [Acknowledged(self.honoured)]
        if self.honoured is None:
            logger.warning("A %s before the acknowledgment was ignored", method)
            return []
        return [Notification(method, params)]


def _body(request_id: str, notifications: Mapping[str, Any]) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientInfo": _client_info(),
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"notifications": dict(notifications), "_meta": meta}
    return {"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}


def _headers() -> dict[str, str]:
    return {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": PROTOCOL_VERSION,
        "Mcp-Method": "subscriptions/listen",
    }


async def _check(response: httpx2.Response) -> None:
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code == 200 and content_type == "text/event-stream":
        return
    await response.aread()
    code, message = None, f"HTTP {response.status_code}"
    try:
        error = response.json()["error"]
        code, message = error["code"], f"HTTP {response.status_code}, {error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        pass
    retry_after = response.headers.get("retry-after", "")
    raise ListenRefusedError(
        response.status_code, message, code=code, retry_after=float(retry_after) if retry_after.isdigit() else None
    )
