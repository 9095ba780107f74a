"""
Django signals: what the project does, for counters, logs and metrics. No signal carries a URI, an id or a principal.

Receivers run soon after, in a thread of their own and in order, and may raise, block and ask the database; see
``mcp_channels.telemetry``. Each signal has the argument ``at`` (float): when it happened, in seconds since the epoch.
"""

from django.dispatch import Signal

stream_started = Signal()
"""Sent when a stream's acknowledgment was written. Arguments: ``endpoint`` (str), ``kinds`` (tuple of str)."""

stream_stopped = Signal()
"""
Sent once for each stream that started. Arguments: ``endpoint`` (str), ``kinds`` (tuple of str), ``reason`` (str),
``duration`` (float, seconds), ``delivered`` (int, notifications).
"""

notification_published = Signal()
"""
Sent when notifications were handed to the channel layer. Arguments: ``kinds`` (tuple of str), ``count`` (int), and
``counts`` (dict of int, by kind).
"""

notification_dropped = Signal()
"""Sent when a stream skipped one notification because its pending set was full. Arguments: ``endpoint``, ``kind``."""
