"""
A server whose resources have URIs of any text, and a tool that says that one changed. An ASGI application.
"""

import os
import time

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
get_asgi_application()

from mcp_channels import MCPConsumer, MCPServer, anotify_resource_updated  # noqa: E402

server = MCPServer("pages")


@server.resource("page:{+text}")
async def page(text: str) -> str:
    return text


@server.resource("page:secret", scope="secrets:read")
async def secret() -> str:
    return "secret"


@server.tool()
async def touch(uris: list[str]) -> str:
    for uri in uris:
        await anotify_resource_updated(uri)
    return "done"


@server.tool()
async def hog(seconds: float) -> str:
    # Keeps the event loop to itself, as bad code does.
    time.sleep(seconds)  # noqa: ASYNC251
    return "done"


application = ProtocolTypeRouter(
    {"http": URLRouter([path("mcp", MCPConsumer.as_asgi(server=server, allow_anonymous=True))])}
)
