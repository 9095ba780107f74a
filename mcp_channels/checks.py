"""
System checks: what is wrong with the settings, and what would go wrong with the project as it is set up.

An id never changes its meaning, and is never used for another.
"""

import difflib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from channels.layers import InMemoryChannelLayer, channel_layers
from channels.routing import get_default_application
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning as Caution, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.urls import get_resolver
from django.utils.module_loading import import_string

from mcp_channels.conf import DEFAULTS, SETTING, Settings
from mcp_channels.models import LiveStream

LONGEST_SILENCE: Final = 60
"""Seconds after which proxies and clients commonly give up a connection that is silent."""

SMALLEST_CAPACITY: Final = 1000
"""
Messages that a queue of the layer should hold. A publisher sends up to 200 a second; so five of them fill it while a
process that serves streams reads nothing for a second.
"""

CHANNEL: Final = "specific.hub!channel"
"""A hub's channel, as the layer names one."""

SHORTEST_LOCK_TIMEOUT: Final = 5
"""Seconds that a writer should wait for SQLite's lock."""

PROCESS_COUNTS: Final = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS")
"""Environment variables that tell servers how many processes to start."""

PUBSUB: Final = "channels_redis.pubsub.RedisPubSubChannelLayer"

logger = logging.getLogger("mcp_channels.checks")


@register("mcp_channels")
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """
    E001: the setting is no dict. E002: an unknown name. E003: a value that can't be used. W005: streams are silent for
    longer than what lies between lets them be.
    """
    read = Settings()
    try:
        given = read.given()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="mcp_channels.E001")]
    messages: list[CheckMessage] = []
    for name in given:
        if name not in DEFAULTS:
            near = difflib.get_close_matches(str(name), DEFAULTS, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known names: {', '.join(DEFAULTS)}."
            messages.append(Error(f"{SETTING} has an unknown name: {name!r}.", hint=hint, id="mcp_channels.E002"))
            continue
        try:
            getattr(read, str(name).lower())
        except ImproperlyConfigured as error:
            messages.append(Error(str(error), id="mcp_channels.E003"))
    interval = _read(read, "keep_alive_interval")
    if interval is not None and interval >= LONGEST_SILENCE:
        messages.append(
            Caution(
                f"{SETTING}['KEEP_ALIVE_INTERVAL'] is {interval:g} seconds: proxies and clients cut what is silent for"
                " so long.",
                hint=f"Set it below {LONGEST_SILENCE}.",
                id="mcp_channels.W005",
            )
        )
    return messages


@register("mcp_channels")
def check_authentication_classes(**kwargs: Any) -> list[CheckMessage]:
    """
    E004: what can't authenticate anybody, in the setting.
    """
    classes = _read(Settings(), "authentication_classes")
    return _check_classes(f"{SETTING}['AUTHENTICATION_CLASSES']", classes or ())


@register("mcp_channels")
def check_layer(**kwargs: Any) -> list[CheckMessage]:
    """
    E010: no such channel layer. E013: it can't be made. W011, W012: a layer in memory where there is, or may be, more
    than one process. W014: a layer that drops what doesn't fit, and holds little.
    """
    alias = _read(Settings(), "channel_layer")
    if alias is None:
        return []
    if alias not in (getattr(django_settings, "CHANNEL_LAYERS", None) or {}):
        return [
            Error(
                f"CHANNEL_LAYERS has no {alias!r}: listen requests are refused, and nobody hears of changes.",
                hint=f"Configure it, or name another in {SETTING}['CHANNEL_LAYER'].",
                id="mcp_channels.E010",
            )
        ]
    try:
        layer = channel_layers.make_backend(alias)
    except Exception as error:  # whatever a layer's class makes of its configuration
        # Not the error's text: a layer's configuration may hold a password.
        return [
            Error(
                f"The channel layer {alias!r} can't be made ({type(error).__name__}).",
                hint=f"Look at BACKEND and CONFIG of CHANNEL_LAYERS[{alias!r}].",
                id="mcp_channels.E013",
            )
        ]
    if isinstance(layer, InMemoryChannelLayer):
        return _check_memory(alias)
    capacity = _capacity(layer)
    if capacity is not None and capacity < SMALLEST_CAPACITY:
        return [
            Caution(
                f"The channel layer {alias!r} drops what doesn't fit into a queue of {capacity}: a process that is"
                " busy for a moment tells all of its streams that anything may have changed.",
                hint=f"Use {PUBSUB}, or set capacity to {SMALLEST_CAPACITY} or more in its CONFIG.",
                id="mcp_channels.W014",
            )
        ]
    return []


@register("mcp_channels")
def check_endpoints(**kwargs: Any) -> list[CheckMessage]:
    """
    E004: what can't authenticate anybody, at an endpoint. Outside DEBUG, W020: an endpoint without authentication;
    W021: one where anybody may call tools that change something.
    """
    if not django_settings.DEBUG:
        _load_endpoints()
    # Only here: it takes the SDK with it.
    from mcp_channels.endpoint.endpoint import ENDPOINTS

    messages: list[CheckMessage] = []
    for endpoint in sorted(ENDPOINTS, key=lambda endpoint: endpoint.name):
        where = f"The endpoint {endpoint.name!r}"
        classes = _read(endpoint, "authentication_classes")
        anonymous = _read(endpoint, "allows_anonymous")
        if classes is None or anonymous is None:
            continue  # E003 says so
        if classes != _read(Settings(), "authentication_classes"):
            messages += _check_classes(where, classes)
        if django_settings.DEBUG:
            continue
        if not classes:
            messages.append(_unauthenticated(where, "serves everybody" if anonymous else "answers everybody 401"))
        elif anonymous and (tools := endpoint.server.unguarded_tools()):
            messages.append(
                Caution(
                    f"{where} lets anonymous callers call {', '.join(tools)}.",
                    hint="Give tools that change something a scope, and the others readOnlyHint in their annotations.",
                    id="mcp_channels.W021",
                )
            )
    if not django_settings.DEBUG and not ENDPOINTS and _read(Settings(), "authentication_classes") == ():
        messages.append(_unauthenticated(f"{SETTING}['AUTHENTICATION_CLASSES']", "is empty"))
    return messages


@register("mcp_channels")
def check_database(**kwargs: Any) -> list[CheckMessage]:
    """
    W030, W031: SQLite fails where it could wait.
    """
    alias = router.db_for_write(LiveStream)
    connection: Any = connections[alias]
    if connection.vendor != "sqlite" or connection.is_in_memory_db():
        return []
    options = connection.settings_dict.get("OPTIONS") or {}
    messages: list[CheckMessage] = []
    timeout = options.get("timeout")
    if not isinstance(timeout, (int, float)) or timeout < SHORTEST_LOCK_TIMEOUT:
        messages.append(
            Caution(
                f"The SQLite database {alias!r} has no timeout of {SHORTEST_LOCK_TIMEOUT} seconds or more: where"
                " writers queue for its lock, listen requests fail with “database is locked”.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS']['timeout'] to 20.",
                id="mcp_channels.W030",
            )
        )
    if str(options.get("transaction_mode") or "DEFERRED").upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        messages.append(
            Caution(
                f"Transactions on the SQLite database {alias!r} take its lock when they first write: one that has read"
                " before, as a listen request's does, then fails with “database is locked” without waiting.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] to 'IMMEDIATE'.",
                id="mcp_channels.W031",
            )
        )
    return messages


def _read(holder: Any, name: str) -> Any:
    """
    A setting; None where it can't be used, which E001 or E003 says.
    """
    try:
        return getattr(holder, name)
    except ImproperlyConfigured:
        return None


def _check_classes(where: str, classes: Sequence[Any]) -> list[CheckMessage]:
    hint = "Name subclasses of rest_framework.authentication.BaseAuthentication, or their dotted paths."
    return [Error(f"{where}: {trouble}", hint=hint, id="mcp_channels.E004") for trouble in _bad_classes(classes)]


def _bad_classes(classes: Sequence[Any]) -> Iterator[str]:
    for item in classes:
        try:
            loaded = import_string(item) if isinstance(item, str) else item
        except Exception as error:  # a module may fail in any way
            yield f"{item!r} can't be imported ({type(error).__name__}: {error})."
            continue
        methods = (getattr(loaded, name, None) for name in ("authenticate", "authenticate_header"))
        if not isinstance(loaded, type) or not all(map(callable, methods)):
            yield f"{item!r} is no authentication class of Django REST Framework."


def _check_memory(alias: str) -> list[CheckMessage]:
    several = next((name for name in PROCESS_COUNTS if _count(os.environ.get(name, "")) > 1), None)
    if several is not None:
        return [
            Caution(
                f"{several}={os.environ[several]} asks for several processes, and the channel layer {alias!r} is in"
                " memory: what one changes, the clients of the others don't hear.",
                hint=f"Use {PUBSUB}.",
                id="mcp_channels.W012",
            )
        ]
    if django_settings.DEBUG:
        return []
    return [
        Caution(
            f"The channel layer {alias!r} is in memory: a change made in another process is not heard of.",
            hint=f"Use {PUBSUB}.",
            id="mcp_channels.W011",
        )
    ]


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _capacity(layer: Any) -> int | None:
    """
    How much a hub's queue on this layer holds; None where nothing is dropped.
    """
    # Statically: channels_redis.pubsub looks up what it hasn't on a layer that needs an event loop.
    capacity = inspect.getattr_static(layer, "capacity", None)
    if not isinstance(capacity, int):
        return None
    # channels_redis.core has a queue on either side; only the one in Redis goes by the channel's name.
    of_channel = layer.get_capacity(CHANNEL) if hasattr(type(layer), "get_capacity") else capacity
    return min(capacity, int(of_channel))


def _load_endpoints() -> None:
    """
    Import what makes endpoints, as a server would.
    """
    loads: tuple[Callable[[], Any], ...] = (get_default_application, lambda: get_resolver().url_patterns)
    for load in loads:
        try:
            load()
        except Exception as error:  # what is wrong there is the server's to say, or Django's own checks'
            logger.debug("No endpoints were found: %r", error)


def _unauthenticated(where: str, what: str) -> CheckMessage:
    return Caution(
        f"{where} {what}: there are no authentication classes.",
        hint=f"Name some in {SETTING}['AUTHENTICATION_CLASSES'], or with authentication_classes.",
        id="mcp_channels.W020",
    )
