"""
The example project as an ASGI application, with one more tool: ``publish``.
"""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django.setup()

# Models may be imported once Django is set up; and the tool is there before the server is mounted, so that nobody is
# told that the tools changed.
from benchmarks.tools import publish  # noqa: E402
from example_project.notes.mcp import server  # noqa: E402

server.tool(scope="notes:write")(publish)

from example_project.asgi import application  # noqa: E402, F401
