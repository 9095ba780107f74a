"""
Settings of the tests that run in pytest's own process: the example project's, on a database and a layer of their own.
"""

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS as EXAMPLE_APPS

INSTALLED_APPS = [*EXAMPLE_APPS, "rest_framework.authtoken", "oauth2_provider"]
OAUTH2_PROVIDER = {"SCOPES": {"notes:read": "Read notes", "notes:write": "Write notes"}}
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
MCP_CHANNELS = {}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
