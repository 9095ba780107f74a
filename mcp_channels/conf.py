"""
The project's settings: one dict, ``MCP_CHANNELS``, read through one typed object.

This module is the only reader of ``django.conf.settings``. A value is read once and kept until the setting changes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

SETTING: Final = "MCP_CHANNELS"

DEFAULTS: Final[Mapping[str, Any]] = {
    "MAX_STREAMS": 10_000,
    "MAX_LISTENS_PER_PRINCIPAL": 4,
    "MAX_STREAM_LIFETIME": 3600,
    "LISTEN_IDLE_TIMEOUT": None,
    "KEEP_ALIVE_INTERVAL": 15,
    "LISTEN_MAX_QUEUE": 1000,
    "MAX_FILTER_ENTRIES": 1000,
    "MAX_BODY_SIZE": 4 * 1024 * 1024,
    "ALLOWED_ORIGINS": (),
    "AUTHENTICATION_CLASSES": ("mcp_channels.auth.authentication.BearerTokenAuthentication",),
    "ALLOW_ANONYMOUS": False,
    "CHANNEL_LAYER": "default",
    "SEND_TIMEOUT": 30,
    "RESOURCE_PAGE_SIZE": 100,
}

# As a browser sends it (RFC 6454 §6.2): in lower case, and without a path.
_ORIGIN: Final = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/?#@*\sA-Z]+")


class Settings:
    """
    ``MCP_CHANNELS`` with its defaults. Reading a value that cannot be used raises ``ImproperlyConfigured``.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] | None = None

    def reload(self) -> None:
        """
        Forget what was read; the next access reads Django's settings again.
        """
        self._values = None

    def given(self) -> Mapping[str, Any]:
        """
        The dict as the project wrote it.

        Raises:
            ImproperlyConfigured: it isn't a dict.
        """
        value = getattr(django_settings, SETTING, {})
        if not isinstance(value, Mapping):
            raise ImproperlyConfigured(f"{SETTING} must be a dict, not {type(value).__name__}.")
        return value

    def _get(self, name: str) -> Any:
        if self._values is None:
            self._values = {**DEFAULTS, **self.given()}
        return self._values[name]

    def _count(self, name: str) -> int:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ImproperlyConfigured(f"{SETTING}['{name}'] must be a positive integer, not {value!r}.")
        return value

    def _seconds(self, name: str) -> float:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ImproperlyConfigured(f"{SETTING}['{name}'] must be a positive number of seconds, not {value!r}.")
        return float(value)

    def _names(self, name: str) -> tuple[Any, ...]:
        value = self._get(name)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ImproperlyConfigured(f"{SETTING}['{name}'] must be a list or a tuple, not {value!r}.")
        return tuple(value)

    def _flag(self, name: str) -> bool:
        value = self._get(name)
        if not isinstance(value, bool):
            raise ImproperlyConfigured(f"{SETTING}['{name}'] must be True or False, not {value!r}.")
        return value

    @property
    def max_streams(self) -> int:
        """The most streams that one process holds; one more is answered 503."""
        return self._count("MAX_STREAMS")

    @property
    def max_listens_per_principal(self) -> int:
        """The most streams that one principal holds, where its row doesn't say otherwise."""
        return self._count("MAX_LISTENS_PER_PRINCIPAL")

    @property
    def max_stream_lifetime(self) -> float | None:
        """Seconds after which a stream is ended (``max_lifetime``); None: no limit."""
        return None if self._get("MAX_STREAM_LIFETIME") is None else self._seconds("MAX_STREAM_LIFETIME")

    @property
    def listen_idle_timeout(self) -> float | None:
        """Seconds without a notification after which a stream is ended (``idle_timeout``); None: no limit."""
        return None if self._get("LISTEN_IDLE_TIMEOUT") is None else self._seconds("LISTEN_IDLE_TIMEOUT")

    @property
    def keep_alive_interval(self) -> float:
        """Seconds of silence after which a stream is sent a comment."""
        return self._seconds("KEEP_ALIVE_INTERVAL")

    @property
    def listen_max_queue(self) -> int:
        """The most topics that wait for one stream's socket."""
        return self._count("LISTEN_MAX_QUEUE")

    @property
    def max_filter_entries(self) -> int:
        """The most URIs, and the most task ids, in one filter."""
        return self._count("MAX_FILTER_ENTRIES")

    @property
    def max_body_size(self) -> int:
        """The longest request body, in bytes; a longer one is answered 413."""
        return self._count("MAX_BODY_SIZE")

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """Origins (``https://app.example.com``) that may call besides the endpoint's own."""
        origins = self._names("ALLOWED_ORIGINS")
        for origin in origins:
            if not isinstance(origin, str) or _ORIGIN.fullmatch(origin) is None:
                raise ImproperlyConfigured(
                    f"{SETTING}['ALLOWED_ORIGINS'] must hold origins like 'https://app.example.com', not {origin!r}."
                )
        return origins

    @property
    def authentication_classes(self) -> tuple[Any, ...]:
        """DRF authentication classes, or their dotted paths, tried in order."""
        return self._names("AUTHENTICATION_CLASSES")

    @property
    def allow_anonymous(self) -> bool:
        """Whether an endpoint that doesn't say serves callers without credentials."""
        return self._flag("ALLOW_ANONYMOUS")

    @property
    def channel_layer(self) -> str:
        """The alias, in ``CHANNEL_LAYERS``, of the layer that carries notifications."""
        value = self._get("CHANNEL_LAYER")
        if not isinstance(value, str) or not value:
            raise ImproperlyConfigured(f"{SETTING}['CHANNEL_LAYER'] must be the name of a layer, not {value!r}.")
        return value

    @property
    def send_timeout(self) -> float:
        """Seconds that one write to a client may take before its stream is ended."""
        return self._seconds("SEND_TIMEOUT")

    @property
    def resource_page_size(self) -> int:
        """Resources on one page of ``resources/list``."""
        return self._count("RESOURCE_PAGE_SIZE")


settings = Settings()
"""The settings in force."""


def _reload(*, setting: str, **kwargs: object) -> None:
    if setting == SETTING:
        settings.reload()


setting_changed.connect(_reload, dispatch_uid="mcp_channels.conf")
