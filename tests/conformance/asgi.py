"""
The server that the conformance suite is run against.

By hand: ``uvicorn tests.conformance.asgi:application`` in the repository's root; the endpoint is ``/mcp``.
"""

import os
from threading import Thread

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.urls import path, re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.conformance.settings")
django_application = get_asgi_application()

# The database is new. A server may import this module on its event loop, where Django lets nobody use it.
_migrating = Thread(target=call_command, args=["migrate"], kwargs={"verbosity": 0})
_migrating.start()
_migrating.join()

# Models may be imported once Django is set up. The fixtures register themselves with the server.
from mcp_channels import MCPConsumer  # noqa: E402
from tests.conformance.fixtures import input_required, prompts, resources, tools  # noqa: E402, F401
from tests.conformance.fixtures.server import server  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                path("mcp", MCPConsumer.as_asgi(server=server, allow_anonymous=True)),
                re_path("", django_application),
            ]
        ),
    }
)
