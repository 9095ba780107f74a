"""
What can go wrong for a program that listens. Every class is a ``ListenError``.
"""

from typing import Final

PASSING_STATUSES: Final = frozenset({408, 425, 429})
"""HTTP statuses below 500 that say: later, perhaps."""


class ListenError(Exception):
    """
    The base of all errors of the client.
    """


class ConnectionLostError(ListenError):
    """
    The connection to the server broke, or there was none. The same call may succeed later.
    """


class ListenRefusedError(ListenError):
    """
    The server answered with an error.
    """

    def __init__(
        self, status: int | None, message: str, *, code: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; None where the error came on an open stream."""
        self.code = code
        """The JSON-RPC error's code, if there was one."""
        self.retry_after = retry_after
        """Seconds after which the server said to come back (RFC 9110 §10.2.3)."""

    @property
    def is_passing(self) -> bool:
        """
        Whether the same request may succeed later.
        """
        return self.status is not None and (self.status in PASSING_STATUSES or self.status >= 500)


class AcknowledgmentTimeoutError(ListenError, TimeoutError):
    """
    A listen request was not acknowledged in time.
    """


class InvalidResultError(ListenError):
    """
    A listen request was answered with a result that does not close a subscription.
    """


class SubscriptionEndedError(ListenError):
    """
    The server ended the stream, in due form, before what was waited for could happen.
    """


class LegacyPeerError(ListenError):
    """
    The server speaks a protocol version that has no ``subscriptions/listen``.
    """

    def __init__(self, version: str) -> None:
        super().__init__(
            f"The server negotiated MCP {version}, which has no subscriptions/listen (2026-07-28 has): "
            "use subscribe_notifications() instead."
        )
        self.version = version
        """The negotiated protocol version."""


class UseListen(ListenError):  # noqa: N818  # reads as an instruction, which it is
    """
    The server speaks a protocol version that has ``subscriptions/listen``.
    """

    def __init__(self, version: str) -> None:
        super().__init__(
            f"The server negotiated MCP {version}, which serves subscriptions/listen: use listen() or watch()."
        )
        self.version = version
        """The negotiated protocol version."""


class WatchRefusedError(ListenError):
    """
    The server does not watch a resource: its acknowledgment left it out.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(f"The server acknowledged the subscription without {uri!r}.")
        self.uri = uri
        """The resource's URI."""


class SubscribeFailed(ListenError):  # noqa: N818  # named as what happened, as the legacy request is
    """
    ``resources/subscribe`` failed for one URI of a legacy listener's filter, and so the whole registration.
    """

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(f"resources/subscribe failed for {uri!r}: {reason}")
        self.uri = uri
        """The resource's URI."""
        self.reason = reason
        """What the server said, or what broke."""
