"""
Live MCP change notifications for Django: ``subscriptions/listen`` (MCP 2026-07-28) over Channels.

The public names are imported when they are first used, so that importing the package (or its client) needs no Django.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_channels.endpoint.consumer import MCPConsumer as MCPConsumer
    from mcp_channels.notify import (
        anotify_prompts_changed as anotify_prompts_changed,
        anotify_resource_updated as anotify_resource_updated,
        anotify_resources_changed as anotify_resources_changed,
        anotify_tools_changed as anotify_tools_changed,
        notify_prompts_changed as notify_prompts_changed,
        notify_resource_updated as notify_resource_updated,
        notify_resources_changed as notify_resources_changed,
        notify_tools_changed as notify_tools_changed,
    )
    from mcp_channels.resources.bulk import NotifyingQuerySet as NotifyingQuerySet
    from mcp_channels.resources.model import ModelResource as ModelResource
    from mcp_channels.resources.watch import notify_objects as notify_objects
    from mcp_channels.server import MCPServer as MCPServer

__version__ = "0.1.0"

_HOMES = {
    "MCPConsumer": "mcp_channels.endpoint.consumer",
    "MCPServer": "mcp_channels.server",
    "ModelResource": "mcp_channels.resources.model",
    "NotifyingQuerySet": "mcp_channels.resources.bulk",
    "anotify_prompts_changed": "mcp_channels.notify",
    "anotify_resource_updated": "mcp_channels.notify",
    "anotify_resources_changed": "mcp_channels.notify",
    "anotify_tools_changed": "mcp_channels.notify",
    "notify_objects": "mcp_channels.resources.watch",
    "notify_prompts_changed": "mcp_channels.notify",
    "notify_resource_updated": "mcp_channels.notify",
    "notify_resources_changed": "mcp_channels.notify",
    "notify_tools_changed": "mcp_channels.notify",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
