"""
System checks of the settings.
"""

import difflib
from typing import Any

from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from mcp_channels.conf import DEFAULTS, SETTING, Settings


@register("mcp_channels")
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """
    E001: the setting is no dict. E002: an unknown name. E003: a value that can't be used.
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
    return messages


@register("mcp_channels")
def check_layer(**kwargs: Any) -> list[CheckMessage]:
    """
    E010: no such channel layer. W011: an in-memory layer outside DEBUG carries nothing between processes.
    """
    try:
        alias = Settings().channel_layer
    except ImproperlyConfigured:
        return []
    layers = getattr(django_settings, "CHANNEL_LAYERS", {})
    if alias not in layers:
        return [
            Error(
                f"CHANNEL_LAYERS has no {alias!r}: listen requests are refused, and nobody hears of changes.",
                hint=f"Configure it, or name another in {SETTING}['CHANNEL_LAYER'].",
                id="mcp_channels.E010",
            )
        ]
    if "InMemory" in layers[alias].get("BACKEND", "") and not django_settings.DEBUG:
        return [
            checks.Warning(
                f"The channel layer {alias!r} is in memory: a change made in another process is not heard of.",
                hint="Use channels_redis.pubsub.RedisPubSubChannelLayer.",
                id="mcp_channels.W011",
            )
        ]
    return []
