"""
Settings of the server that the conformance suite is run against: one process, and nothing that outlives it.
"""

from example_project.settings import *  # noqa: F403  # a settings module extends another

ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEBUG = False
MCP_CHANNELS = {}
