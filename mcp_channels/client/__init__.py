"""
A listening client. It imports nothing of the server side, and works without Django set up.
"""

from mcp_channels.client.events import (
    Acknowledged as Acknowledged,
    Closed as Closed,
    Event as Event,
    Notification as Notification,
    Reconnecting as Reconnecting,
    Resynchronised as Resynchronised,
)
from mcp_channels.client.listener import Listener as Listener
from mcp_channels.client.wire import ListenRefusedError as ListenRefusedError

__all__ = [
    "Acknowledged",
    "Closed",
    "Event",
    "ListenRefusedError",
    "Listener",
    "Notification",
    "Reconnecting",
    "Resynchronised",
]
