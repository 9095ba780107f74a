"""
One listen request, from its first message to its last, without I/O (MCP 2026-07-28 basic/patterns/subscriptions).

Ids are compared by type and value: ``"9"`` is another request's id than ``9``. What names another request, comes before
the acknowledgment, or is malformed is ignored, with a line in the log at level debug: the server may still serve this
stream, and a client that ended it for such a message would miss what follows.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_channels.client.errors import InvalidResultError, ListenRefusedError
from mcp_channels.client.events import Notification
from mcp_channels.client.filter import Filter

SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
CANCELLED: Final = "notifications/cancelled"
COMPLETE: Final = "complete"

logger = logging.getLogger("mcp_channels.client")


@dataclass(frozen=True, slots=True)
class Granted:
    """
    The server acknowledged the request; ``wire`` is the filter as it came.
    """

    wire: Mapping[str, Any]
    honoured: Filter


class Attempt:
    """
    What has been read of one listen request's stream.
    """

    def __init__(self, request_id: int | str) -> None:
        self.id = request_id
        self.honoured: Filter | None = None
        """What the server granted; None before the acknowledgment."""
        self.reason: str | None = None
        """The reason of a ``notifications/cancelled`` of this request."""
        self.is_cancelled = False
        """Whether there was one."""
        self.is_complete = False
        """Whether the server ended the stream with a result that says so."""
        self.error: ListenRefusedError | InvalidResultError | None = None
        """What ended the request otherwise."""

    @property
    def is_over(self) -> bool:
        """
        Whether the request has been answered. After ``notifications/cancelled`` it has not: the result may follow.
        """
        return self.is_complete or self.error is not None

    def read(self, message: object) -> Granted | Notification | None:
        """
        Take in one message; what it means for the consumer is returned, and the rest is in the attributes.
        """
        if self.is_over or not isinstance(message, Mapping):
            self._ignore("a message that is none, or late")
            return None
        if "method" not in message:
            self._answer(message)
            return None
        params = message.get("params")
        if "id" in message or not isinstance(params, Mapping):
            self._ignore("a message that is no notification with parameters")
            return None
        method = message["method"]
        if method == CANCELLED:
            self._cancel(params)
            return None
        meta = params.get("_meta")
        if not isinstance(meta, Mapping) or not self._is_own(meta.get(SUBSCRIPTION_ID)):
            self._ignore(f"a {method} of another subscription")
            return None
        if method == ACKNOWLEDGED:
            return self._acknowledge(params)
        if self.honoured is None or self.is_cancelled or not isinstance(method, str):
            self._ignore(f"a {method} out of turn")
            return None
        if not self.honoured.admits(method, params):
            self._ignore(f"a {method} that was not granted")
            return None
        return Notification(method, params)

    def _is_own(self, value: object) -> bool:
        return type(value) is type(self.id) and value == self.id

    def _ignore(self, what: str) -> None:
        logger.debug("On the stream of request %r, %s was ignored", self.id, what)

    def _acknowledge(self, params: Mapping[str, Any]) -> Granted | None:
        granted = params.get("notifications")
        if self.honoured is not None or self.is_cancelled or not isinstance(granted, Mapping):
            self._ignore("an acknowledgment that is malformed, or not the first")
            return None
        self.honoured = Filter.honoured(granted)
        return Granted(granted, self.honoured)

    def _cancel(self, params: Mapping[str, Any]) -> None:
        reason = params.get("reason")
        if not self._is_own(params.get("requestId")) or not isinstance(reason, str | None) or self.is_cancelled:
            self._ignore("a cancellation that is malformed, or of another request")
        else:
            self.is_cancelled, self.reason = True, reason

    def _answer(self, message: Mapping[str, Any]) -> None:
        result = message.get("result")
        kind = result.get("resultType") if isinstance(result, Mapping) else None
        if not self._is_own(message.get("id")):
            self._ignore("an answer to another request")
        elif "error" in message:
            self.error = refusal(message["error"])
        elif kind == COMPLETE:
            self.is_complete = True
        else:
            # Not even input_required closes a subscription: it says that the request has not been completed.
            what = f"of the type {kind!r}" if isinstance(result, Mapping) else f"that is {result!r}"
            self.error = InvalidResultError(f"The listen request was answered with a result {what[:200]}")


def refusal(error: object, *, status: int | None = None, retry_after: float | None = None) -> ListenRefusedError:
    """
    The exception for a JSON-RPC error; ``status`` is the HTTP status that it came with.
    """
    fields = error if isinstance(error, Mapping) else {}
    code, message = fields.get("code"), fields.get("message")
    known = code if isinstance(code, int) and not isinstance(code, bool) else None
    parts = [f"HTTP {status}" if status is not None else "", str(known) if known is not None else ""]
    head = ", ".join(part for part in parts if part) or "error"
    text = f"{head}: {message}" if isinstance(message, str) else head
    return ListenRefusedError(status, text, code=known, retry_after=retry_after)
