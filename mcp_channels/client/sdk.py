"""
The one place of the client that reaches into the official SDK's: what its public interface doesn't offer (``mcp`` 2.x).
"""

from collections.abc import Mapping
from typing import Any, cast

import mcp_types as types
from mcp import Client
from mcp.client._transport import TransportStreams as TransportStreams
from mcp.shared._httpx_utils import redirect_location as redirect_location, stream_within_origin as stream_within_origin
from mcp.shared.dispatcher import CallOptions
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_channels.client.filter import LIST_FIELDS, UPDATED, Filter

_CHANGES: dict[str, types.ServerNotification] = {
    "notifications/tools/list_changed": types.ToolListChangedNotification(),
    "notifications/prompts/list_changed": types.PromptListChangedNotification(),
    "notifications/resources/list_changed": types.ResourceListChangedNotification(),
}


def is_modern(version: str) -> bool:
    """
    Whether a protocol version has ``subscriptions/listen``.
    """
    return version in MODERN_PROTOCOL_VERSIONS


def stamped(client: Client, method: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """
    The params and the headers of a request as the SDK's session sends them: with the version, the client's name and its
    capabilities.
    """
    data: dict[str, Any] = {"method": method, "params": dict(params)}
    options: CallOptions = {}
    client.session._stamp(data, options)
    return data["params"], options.get("headers", {})


async def evict(client: Client, method: str, params: Mapping[str, Any]) -> None:
    """
    Take out of the client's response cache what a notification makes stale.
    """
    cache = client._response_cache
    if cache is None:
        return
    if (change := _CHANGES.get(method)) is not None:
        await cache.evict_for_notification(change)
    elif method == UPDATED and isinstance(uri := params.get("uri"), str):
        await cache.evict_for_notification(
            types.ResourceUpdatedNotification(params=types.ResourceUpdatedNotificationParams(uri=uri))
        )


async def evict_all(client: Client, honoured: Filter) -> None:
    """
    Take out of the client's response cache all that the filter tells of.
    """
    for method, field in LIST_FIELDS.items():
        if field in honoured.kinds:
            await evict(client, method, {})
    for uri in honoured.uris:
        await evict(client, UPDATED, {"uri": uri})


def wire_form(notification: types.ServerNotification) -> tuple[str, dict[str, Any]]:
    """
    The method and the params of a notification that the SDK has parsed.
    """
    data = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
    return cast(str, data["method"]), data.get("params") or {}
