"""
Settings of a project that lets callers in in every way there is, and issues OAuth tokens itself.
"""

from example_project.settings import *  # noqa: F403  # a settings module extends another
from example_project.settings import INSTALLED_APPS as EXAMPLE_APPS

INSTALLED_APPS = [*EXAMPLE_APPS, "rest_framework.authtoken", "oauth2_provider"]
ROOT_URLCONF = "tests.auth.urls"
OAUTH2_PROVIDER = {"SCOPES": {"notes:read": "Read notes", "notes:write": "Write notes"}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
