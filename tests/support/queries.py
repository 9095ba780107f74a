"""
What a listen asks the database, counted in one process: the statements of all its threads.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.db.backends.utils import CursorWrapper
from django.urls import path

from tests.support.http import asgi_scope, listen_body


@contextmanager
def recorded() -> Iterator[list[str]]:
    """
    The statements that any thread executes.
    """
    statements: list[str] = []
    original = {name: getattr(CursorWrapper, name) for name in ("execute", "executemany")}

    def recording(call):
        def execute(cursor, sql, *args, **kwargs):
            statements.append(str(sql))
            return call(cursor, sql, *args, **kwargs)

        return execute

    for name, call in original.items():
        setattr(CursorWrapper, name, recording(call))
    try:
        yield statements
    finally:
        for name, call in original.items():
            setattr(CursorWrapper, name, call)


async def listen(application: Any, token: str, notifications: object) -> tuple[dict, list[str]]:
    """
    Open a stream on an ASGI application; the honoured filter, and the statements up to the acknowledgment.
    """
    scope = asgi_scope(Authorization=f"Bearer {token}")
    incoming: asyncio.Queue = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": listen_body(notifications), "more_body": False})
    acknowledgment: asyncio.Future = asyncio.get_running_loop().create_future()

    async def send(message):
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif not acknowledgment.done():
            acknowledgment.set_result(json.loads(message["body"].decode().split("data: ", 1)[1]))

    with recorded() as statements:
        serving = asyncio.create_task(application(scope, incoming.get, send))
        async with asyncio.timeout(10):
            await asyncio.wait([serving, acknowledgment], return_when=asyncio.FIRST_COMPLETED)
            if not acknowledgment.done():
                await serving
        found = list(statements)
    incoming.put_nowait({"type": "http.disconnect"})
    async with asyncio.timeout(10):
        await serving
    return acknowledgment.result()["params"]["notifications"], found


async def listen_with(tokens: Sequence[str], notifications: object) -> list[tuple[dict, list[str]]]:
    """
    Open one stream with each of the tokens, one after the other, on an endpoint of the example project. The first is
    the process's first, which makes its node.
    """
    from example_project.notes.mcp import server
    from mcp_channels import MCPConsumer
    from mcp_channels.listen.beat import Beat
    from mcp_channels.listen.hub import Hub

    async def look(self, **kwargs):
        return None

    application = URLRouter([path("mcp", MCPConsumer.as_asgi(server=server))])
    original, Beat.look = Beat.look, look  # a node's own look comes every second, whoever listens
    try:
        return [await listen(application, token, notifications) for token in tokens]
    finally:
        await Hub.current(get_channel_layer()).close()
        Beat.look = original
