"""
The response stream of one listen request over Streamable HTTP.

This is the one request that doesn't go through the SDK's transport, which can't give what a subscription needs: it
replaces the id of whatever answers a request's stream by the request's own, so that an answer to another id ends it;
one malformed message ends it as well; a result that is no object becomes a parse error; ``Retry-After`` and the HTTP
status are lost; and a stream whose events have ids is asked for again by GET, which MCP 2026-07-28 has no longer. The
envelope, the headers, the redirects and the credentials are the SDK's.
"""

import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

import httpx2

from mcp_channels.client.attempt import refusal
from mcp_channels.client.errors import ConnectionLostError, ListenRefusedError
from mcp_channels.client.relisten import parse_retry_after
from mcp_channels.client.sdk import redirect_location, stream_within_origin

METHOD: Final = "subscriptions/listen"
CONNECT_TIMEOUT: Final = 10.0
MAX_ERROR_BODY: Final = 65536
MAX_EVENT: Final = 16 * 2**20
"""Bytes of one message; an acknowledgment repeats the whole filter."""

logger = logging.getLogger("mcp_channels.client")


async def messages(
    http: httpx2.AsyncClient,
    url: str,
    request: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    silence: float | None,
) -> AsyncIterator[object]:
    """
    Send a listen request, and yield the messages of its response as they are in JSON. Closing the iterator closes the
    response, which is how such a request is cancelled (MCP 2026-07-28 basic/transports).

    Args:
        http: the client to send with; it carries the credentials.
        url: the endpoint.
        request: the JSON-RPC request.
        headers: its headers, besides the content type and ``Accept``.
        silence: seconds without a byte, keep-alives included, after which the connection counts as lost; None: never.

    Raises:
        ConnectionLostError: the connection broke, or there was none.
        ListenRefusedError: the server answered with an error.
    """
    timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=silence, pool=None)
    headers = {**headers, "Accept": "application/json, text/event-stream"}
    try:
        async with stream_within_origin(http, "POST", url, json=request, headers=headers, timeout=timeout) as response:
            if not _is(response, "text/event-stream") or response.status_code != 200:
                yield await _answer(response)
                return
            async with aclosing(aiter(httpx2.EventSource(response, MAX_EVENT))) as events:  # type: ignore[type-var]
                async for event in events:
                    if event.event != "message":
                        continue
                    try:
                        yield json.loads(event.data)
                    except (ValueError, RecursionError):
                        logger.debug("On the stream of request %r, no JSON was ignored", request["id"])
    except httpx2.HTTPError as error:
        raise ConnectionLostError(str(error) or type(error).__name__) from error


async def failure(response: httpx2.Response) -> ListenRefusedError:
    """
    The exception for a response that carries no stream; its body is read.
    """
    retry_after = parse_retry_after(response.headers.get("Retry-After"), now=time.time())
    status = response.status_code
    if (location := redirect_location(response)) is not None:
        return ListenRefusedError(status, f"HTTP {status}: redirected to {location}, which was not followed")
    body = await _json(response)
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        return refusal(body["error"], status=status, retry_after=retry_after)
    return ListenRefusedError(status, f"HTTP {status}", retry_after=retry_after)


async def _answer(response: httpx2.Response) -> object:
    """
    A result that came as plain JSON; anything else is raised.
    """
    if response.status_code == 200 and _is(response, "application/json"):
        body = await _json(response)
        if isinstance(body, Mapping) and "error" not in body:
            return body
    raise await failure(response)


async def _json(response: httpx2.Response) -> object:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_ERROR_BODY:
            return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is(response: httpx2.Response, content_type: str) -> bool:
    given: str = response.headers.get("content-type", "")
    return given.partition(";")[0].strip().lower() == content_type
