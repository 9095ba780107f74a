"""
Django signals: what the project does, for counters, logs and metrics. No signal carries a URI, an id or a principal.
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
"""Sent when notifications were handed to the channel layer. Arguments: ``kinds`` (tuple of str), ``count`` (int)."""

notification_dropped = Signal()
"""Sent when a stream skipped one notification because its pending set was full. Arguments: ``endpoint``, ``kind``."""
