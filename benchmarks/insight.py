"""
The example project as an ASGI application that also tells, at ``/insight``, what its process holds.
"""

import asyncio
import json
import os
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django.setup()

from example_project.asgi import application as project  # noqa: E402  # models may be imported once Django is set up


async def application(scope: Any, receive: Any, send: Any) -> None:
    """
    Answer ``/insight`` with the number of asyncio tasks; everything else is the project's.
    """
    if scope["type"] != "http" or scope["path"] != "/insight":
        await project(scope, receive, send)
        return
    body = json.dumps({"tasks": len(asyncio.all_tasks())}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
