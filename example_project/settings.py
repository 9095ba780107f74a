"""
Settings of the example project. The environment sets what differs from place to place:

``DATABASE_URL``, ``REDIS_URL`` (unset: an in-memory layer, one process), ``CHANNEL_LAYER_BACKEND`` (a class),
``CHANNEL_LAYER_CONFIG`` and ``MCP_CHANNELS_JSON`` (JSON objects, merged over what stands here), ``SECRET_KEY``,
``DEBUG``, ``ALLOWED_HOSTS`` (separated by commas), ``BEHIND_TLS_PROXY`` (clients reach the server by nothing but a
proxy that ends their TLS and sets ``X-Forwarded-Proto``).
"""

import json
import os
from pathlib import Path

import dj_database_url

BASE_DIR = Path(__file__).resolve().parent.parent


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


SECRET_KEY = os.environ.get("SECRET_KEY", "only-for-the-example-project-on-your-own-machine")
DEBUG = _flag("DEBUG")
if _flag("BEHIND_TLS_PROXY"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")

INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "mcp_channels",
    "example_project.notes",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "example_project.urls"
ASGI_APPLICATION = "example_project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": dj_database_url.parse(
        os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR / 'db.sqlite3'}",
        conn_max_age=600,
        conn_health_checks=True,
    )
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # Writers wait for each other instead of failing, and readers don't wait at all.
    DATABASES["default"]["OPTIONS"] = {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    }

_REDIS_URL = os.environ.get("REDIS_URL")
_BACKEND = os.environ.get("CHANNEL_LAYER_BACKEND") or (
    "channels_redis.pubsub.RedisPubSubChannelLayer" if _REDIS_URL else "channels.layers.InMemoryChannelLayer"
)
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": _BACKEND,
        "CONFIG": {
            **({"hosts": [_REDIS_URL]} if _REDIS_URL else {}),
            **json.loads(os.environ.get("CHANNEL_LAYER_CONFIG") or "{}"),
        },
    },
}

MCP_CHANNELS = {
    **json.loads(os.environ.get("MCP_CHANNELS_JSON") or "{}"),
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "mcp_channels.auth.authentication.BearerTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"mcp_channels": {"handlers": ["console"], "level": "INFO", "propagate": False}},
}
