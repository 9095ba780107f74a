"""
Settings of the server that the conformance suite is run against: one process, and nothing that outlives it.
"""

from tempfile import TemporaryDirectory

from example_project.settings import *  # noqa: F403  # a settings module extends another
from example_project.settings import DATABASES as _DATABASES

# Removed when the process ends.
_directory = TemporaryDirectory(prefix="conformance-")

ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
DATABASES = {
    "default": {
        **_DATABASES["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{_directory.name}/db.sqlite3",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"},
    }
}
DEBUG = False
MCP_CHANNELS = {}
