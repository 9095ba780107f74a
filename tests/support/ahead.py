"""
The example project on a host whose clock is a minute ahead. An ASGI application.
"""

from tests.support import skewed

skewed.start(60)

from example_project.asgi import application  # noqa: E402, F401
