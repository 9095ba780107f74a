"""
Hosts the SDK's own HTTP application for what isn't a listen request.

The application needs a task group that lives as long as its sessions. An ASGI lifespan would give it one, but Daphne
runs none, and Channels' routing passes none on; so it is started at the first request, once for each event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.typing import ASGISendCallable, HTTPScope
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from mcp_channels import sdk
from mcp_channels.server import SCOPE_KEY, Call, MCPServer


class Upstream:
    """
    The SDK's application for one server.
    """

    def __init__(self, server: MCPServer, *, max_body_size: int) -> None:
        self.server = server
        self._max_body_size = max_body_size
        self._running: WeakKeyDictionary[asyncio.AbstractEventLoop, _Running] = WeakKeyDictionary()

    async def __call__(
        self,
        scope: HTTPScope,
        receive: Callable[[], Awaitable[Any]],
        send: ASGISendCallable,
        *,
        call: Call,
        lasts: float | None = None,
        is_stream: bool = False,
    ) -> bool:
        """
        Answer one request, and say whether the response was cut before its end.

        Args:
            scope, receive, send: as ASGI has them.
            call: what the server's handlers find in their context.
            lasts: seconds after which the response is cut; None: never.
            is_stream: whether it is the stream of a session of an older revision, which has no end of its own.
        """
        loop = asyncio.get_running_loop()
        running = self._running.get(loop)
        if running is None or running.task.done():
            running = self._running[loop] = _Running(self.server, self._max_body_size)
        manager = await asyncio.shield(running.manager)
        try:
            async with asyncio.timeout(lasts) as deadline:
                if is_stream:
                    _session_streams[deadline] = loop
                await manager.handle_request(_with_call(scope, call), receive, send)
        except TimeoutError:
            if not deadline.expired():
                raise
            return True
        return False


class _Running:
    def __init__(self, server: MCPServer, max_body_size: int) -> None:
        loop = asyncio.get_running_loop()
        self.manager: asyncio.Future[Any] = loop.create_future()
        self.task = loop.create_task(self._run(server, max_body_size), name=f"mcp_channels-upstream-{server.name}")

    async def _run(self, server: MCPServer, max_body_size: int) -> None:
        # One task enters and leaves the manager's task group, as anyio asks for.
        manager = sdk.new_manager(server, max_request_body_size=max_body_size)
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
    manager = sdk.new_manager(server, json_response=True, stateless_http=True)
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
    # The credentials have done their work; what goes on without them can't leak them.
    headers = [(name, value) for name, value in scope["headers"] if name not in (b"authorization", b"cookie")]
    return {**scope, "headers": headers, SCOPE_KEY: call, "user": _sdk_user(call)}


def _sdk_user(call: Call) -> AuthenticatedUser:
    """
    The caller in the SDK's terms; it ties a legacy session to the principal that opened it.
    """
    principal = call.caller.principal
    subject = principal.name if call.caller.is_anonymous else str(principal.pk)
    return AuthenticatedUser(
        AccessToken(token="", client_id=principal.name, scopes=sorted(call.caller.scopes), subject=subject)
    )


def end_sessions() -> None:
    """
    Cut the streams of sessions of older revisions, from any thread or from a signal handler.
    """
    for deadline, loop in list(_session_streams.items()):
        if not loop.is_closed():
            loop.call_soon_threadsafe(_end_now, deadline, loop)


def _end_now(deadline: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it is over by itself
        deadline.reschedule(loop.time())


_session_streams: WeakKeyDictionary[asyncio.Timeout, asyncio.AbstractEventLoop] = WeakKeyDictionary()


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
