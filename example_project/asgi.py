"""
The example project's ASGI application: two MCP endpoints, and Django for the rest.
"""

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.urls import path, re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django_application = ASGIStaticFilesHandler(get_asgi_application())

# Models may be imported once Django is set up.
from example_project.notes.mcp import open_server, server  # noqa: E402
from mcp_channels import MCPConsumer  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                path("mcp", MCPConsumer.as_asgi(server=server)),
                path("open/mcp", MCPConsumer.as_asgi(server=open_server, allow_anonymous=True)),
                re_path("", django_application),
            ]
        ),
    }
)
