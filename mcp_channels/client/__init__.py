"""
A client that listens. It imports nothing of the server side, and works without Django set up.
"""

from mcp_channels.client.client import ListenClient as ListenClient
from mcp_channels.client.errors import (
    AcknowledgmentTimeoutError as AcknowledgmentTimeoutError,
    ConnectionLostError as ConnectionLostError,
    InvalidResultError as InvalidResultError,
    LegacyPeerError as LegacyPeerError,
    ListenError as ListenError,
    ListenRefusedError as ListenRefusedError,
    SubscribeFailed as SubscribeFailed,
    SubscriptionEndedError as SubscriptionEndedError,
    UseListen as UseListen,
    WatchRefusedError as WatchRefusedError,
)
from mcp_channels.client.events import (
    Acknowledged as Acknowledged,
    Closed as Closed,
    Event as Event,
    Notification as Notification,
    Reconnected as Reconnected,
    Reconnecting as Reconnecting,
    Resynchronised as Resynchronised,
)
from mcp_channels.client.filter import Filter as Filter
from mcp_channels.client.legacy import Listener as Listener
from mcp_channels.client.relisten import Relisten as Relisten
from mcp_channels.client.subscription import Subscription as Subscription
from mcp_channels.client.watches import Watch as Watch
