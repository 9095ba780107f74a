"""
The example project and the pages, with a look inside the process. An ASGI application.

``GET /insight`` answers with what a server holds that must not grow. A ``POST`` below ``/fault`` goes to the pages over
a connection whose every write fails once the head is out, as a server's does when it trips over its own peer.
"""

import asyncio
import gc
import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from channels.layers import get_channel_layer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path

from example_project.asgi import application as example
from mcp_channels import MCPConsumer
from mcp_channels.listen.hub import Hub, _Entry, _hubs
from mcp_channels.listen.node import Held
from mcp_channels.listen.stream import Stream
from mcp_channels.publisher import publisher
from tests.support.pages import server

COUNTED = (Hub, _Entry, Held, Stream, MCPConsumer)


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        await example(scope, receive, send)
    elif scope["path"] == "/insight":
        body = json.dumps(look()).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body, "more_body": False})
    elif scope["path"].startswith("/fault/"):
        await pages({**scope, "path": scope["path"].removeprefix("/fault")}, receive, _failing(send))
    elif scope["path"].startswith("/pages/"):
        await pages(scope, receive, send)
    else:
        await example(scope, receive, send)


pages = ProtocolTypeRouter(
    {"http": URLRouter([path("pages/mcp", MCPConsumer.as_asgi(server=server, allow_anonymous=True))])}
)


def _failing(send: Any) -> Any:
    async def failing(message: Any) -> None:
        if message["type"] == "http.response.body" and message.get("more_body"):
            raise ConnectionResetError("as asked for")
        await send(message)

    return failing


def look() -> dict[str, Any]:
    """
    Counts of what the process holds, by name.
    """
    gc.collect()
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    return {
        "hubs": len(_hubs),
        "streams": 0 if hub is None else len(hub.streams),
        "topics": 0 if hub is None else len(hub._entries),
        "idle": 0 if hub is None else len(hub._idle),
        **({} if hub is None else _membership(hub)),
        **({} if hub is None else _node(hub)),
        "publisher": len(publisher._waiting) + len(publisher._told),
        "tasks": dict(Counter(map(_task_name, asyncio.all_tasks()))),
        "threads": dict(Counter(thread.name for thread in threading.enumerate())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "objects": _objects(),
        "layer": _layer(loop),
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    }


def _membership(hub: Hub) -> dict[str, int]:
    membership = hub._membership
    names = ("_wanted", "_joined", "_leaving")
    return {name.strip("_"): len(getattr(membership, name)) for name in names if hasattr(membership, name)}


def _node(hub: Hub) -> dict[str, int]:
    names = ("_held", "_leaving", "_unreleased", "_admitting")
    sizes = {name: getattr(hub.node, name) for name in names}
    return {f"node{name}": value if isinstance(value, int) else len(value) for name, value in sizes.items()}


def _task_name(task: Any) -> str:
    name = task.get_name()
    return name if not name.startswith("Task-") else getattr(task.get_coro(), "__qualname__", "?")


def _objects() -> dict[str, int]:
    counts = dict.fromkeys((kind.__name__ for kind in COUNTED), 0)
    for thing in gc.get_objects():
        if type(thing) in COUNTED:
            counts[type(thing).__name__] += 1
    return counts


def _layer(loop: asyncio.AbstractEventLoop) -> dict[str, int]:
    """
    What the channel layer keeps in this process.
    """
    layer = get_channel_layer()
    inner = getattr(layer, "_layers", {}).get(loop)
    found = {}
    for owner, name in ((inner, "channels"), (inner, "groups"), (layer, "receive_buffer"), (layer, "receive_cleaners")):
        held = getattr(owner, name, None) if owner is not None else None
        if isinstance(held, dict | list):
            found[name] = len(held)
    return found
