"""
A project without drf-spectacular, whose own APIs have versions.
"""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, REST_FRAMEWORK

INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "drf_spectacular"]
REST_FRAMEWORK = {name: value for name, value in REST_FRAMEWORK.items() if name != "DEFAULT_SCHEMA_CLASS"}
REST_FRAMEWORK |= {
    "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.NamespaceVersioning",
    "DEFAULT_VERSION": "v1",
    "ALLOWED_VERSIONS": ["v1"],
}
