"""
The same server behind every way of authenticating. By hand: ``uvicorn tests.auth.asgi:application``.
"""

import os

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path, re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.auth.settings")
django_application = get_asgi_application()

# Models may be imported once Django is set up.
from example_project.notes.mcp import server  # noqa: E402
from mcp_channels import MCPConsumer  # noqa: E402
from tests.auth import classes  # noqa: E402


def endpoint(authentication_classes, **options):
    return MCPConsumer.as_asgi(server=server, authentication_classes=authentication_classes, **options)


application = ProtocolTypeRouter(
    {
        "http": AuthMiddlewareStack(
            URLRouter(
                [
                    path("mcp", endpoint([*classes.OWN, *classes.OAUTH])),
                    path("own", endpoint(None)),
                    path("session", endpoint(classes.SESSION)),
                    path("token", endpoint(classes.TOKEN)),
                    path("keyword", endpoint([classes.BearerKeyword])),
                    path("jwt", endpoint(classes.JWT)),
                    path("stateless", endpoint(classes.STATELESS)),
                    path("oauth", endpoint(classes.OAUTH)),
                    path("every", endpoint(classes.EVERY)),
                    path("open", endpoint(classes.EVERY, allow_anonymous=True)),
                    path("scoped", endpoint(None, scope=["notes:read", "notes:write"], allow_anonymous=True)),
                    path("slow", endpoint([classes.Slow])),
                    re_path("", django_application),
                ]
            )
        ),
    }
)
