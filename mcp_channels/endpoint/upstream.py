"""
Hosts the SDK's own HTTP application for what isn't a listen request.

The application needs a task group that lives as long as its sessions. An ASGI lifespan would give it one, but Daphne
runs none, and Channels' routing passes none on; so it is started at the first request, once for each event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.typing import ASGISendCallable, HTTPScope
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings

from mcp_channels.server import SCOPE_KEY, Call, MCPServer

logger = logging.getLogger("mcp_channels.endpoint")


class Upstream:
    """
    The SDK's application for one server.
    """

    def __init__(self, server: MCPServer, *, max_body_size: int) -> None:
        self.server = server
        self._max_body_size = max_body_size
        self._running: WeakKeyDictionary[asyncio.AbstractEventLoop, _Running] = WeakKeyDictionary()

    async def __call__(
        self, scope: HTTPScope, receive: Callable[[], Awaitable[Any]], send: ASGISendCallable, *, call: Call
    ) -> None:
        """
        Answer one request; the server's handlers find ``call`` in their context.
        """
        loop = asyncio.get_running_loop()
        running = self._running.get(loop)
        if running is None or running.task.done():
            running = self._running[loop] = _Running(self.server, self._max_body_size)
        manager = await asyncio.shield(running.manager)
        await manager.handle_request(_with_call(scope, call), receive, send)


class _Running:
    def __init__(self, server: MCPServer, max_body_size: int) -> None:
        loop = asyncio.get_running_loop()
        self.manager: asyncio.Future[Any] = loop.create_future()
        self.task = loop.create_task(self._run(server, max_body_size), name=f"mcp_channels-upstream-{server.name}")

    async def _run(self, server: MCPServer, max_body_size: int) -> None:
        # One task enters and leaves the manager's task group, as anyio asks for.
        server.streamable_http_app(
            max_request_body_size=max_body_size,
            # Host and Origin have been checked by the endpoint, by Django's rules.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        manager = server.session_manager
        try:
            async with manager.run():
                self.manager.set_result(manager)
                await asyncio.get_running_loop().create_future()
        except Exception as error:
            if self.manager.done():
                raise
            self.manager.set_exception(error)


async def serve_once(
    server: MCPServer, scope: Mapping[str, Any], body: bytes, call: Call
) -> tuple[int, dict[str, str], bytes]:
    """
    Answer one request by itself, with one body: the status, the headers and the body. For callers that can't stream.
    """
    server.streamable_http_app(
        json_response=True,
        stateless_http=True,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    manager = server.session_manager
    head: dict[str, Any] = {}
    chunks: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
        else:
            chunks.append(message.get("body", b""))

    async with manager.run():
        # A caller that waits for one body doesn't leave before it.
        receive = replay(body, asyncio.get_running_loop().create_future)
        await manager.handle_request(_with_call(scope, call), receive, send)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.get("headers", ())}
    return head.get("status", 500), headers, b"".join(chunks)


def _with_call(scope: Any, call: Call) -> dict[str, Any]:
    return {**scope, SCOPE_KEY: call, "user": _sdk_user(call)}


def _sdk_user(call: Call) -> AuthenticatedUser:
    """
    The caller in the SDK's terms; it ties a legacy session to the principal that opened it.
    """
    principal = call.caller.principal
    subject = principal.name if call.caller.is_anonymous else str(principal.pk)
    return AuthenticatedUser(
        AccessToken(token="", client_id=principal.name, scopes=sorted(call.caller.scopes), subject=subject)
    )


def replay(body: bytes, receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """
    A ``receive`` that gives a body that was read already, then whatever the server has to say.
    """
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    def again() -> Awaitable[Any]:
        return _ready(messages.pop()) if messages else receive()

    return again


async def _ready(message: Any) -> Any:
    return message
