"""
The bytes of a listen stream: Server-Sent Events, each one JSON-RPC message on one line.

A notification's bytes are built once for all streams, as a head that ends where the subscription id goes; only the id
differs from stream to stream. JSON is escaped to ASCII, so that no payload can hold a line end of any kind.
"""

import json
from collections.abc import Mapping
from typing import Final

from mcp_channels.topics import Topic

SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"

KEEP_ALIVE: Final = b":\r\n\r\n"
"""A comment: it holds the connection open and carries nothing."""

_START: Final = b"event: message\r\ndata: "
_END: Final = b"\r\n\r\n"
_TAIL: Final = b"}}}" + _END

_METHODS: Final[Mapping[str, str]] = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
    "resource": "notifications/resources/updated",
}


def dumps(value: object) -> bytes:
    """
    JSON without white space, in ASCII.
    """
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _head(method: str, params: Mapping[str, object]) -> bytes:
    members = dumps(params)[1:-1]
    return b'%b{"jsonrpc":"2.0","method":"%b","params":{%b%b"_meta":{"%b":' % (
        _START,
        method.encode("ascii"),
        members,
        b"," if members else b"",
        SUBSCRIPTION_ID.encode("ascii"),
    )


def notification_head(topic: Topic) -> bytes:
    """
    The frame that says that ``topic`` changed, up to the subscription id; ``frame`` completes it.
    """
    return _head(_METHODS[topic.kind], {"uri": topic.key} if topic.kind == "resource" else {})


def frame(head: bytes, subscription_id: bytes) -> bytes:
    """
    A whole frame, from a head and the subscription id as JSON.
    """
    return head + subscription_id + _TAIL


def acknowledged(notifications: Mapping[str, object], subscription_id: bytes) -> bytes:
    """
    The first frame of a stream: the filter as it is honoured.
    """
    return frame(_head("notifications/subscriptions/acknowledged", {"notifications": notifications}), subscription_id)


def closing(subscription_id: bytes, *, reason: str, server_info: bytes) -> bytes:
    """
    What ends a stream that the server ends: ``notifications/cancelled`` (MCP 2026-07-28 basic/patterns/cancellation),
    then the result (basic/patterns/subscriptions, "Graceful Closure"). ``server_info`` is JSON.
    """
    cancelled = b'%b{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b,"reason":%b,' % (
        _START,
        subscription_id,
        dumps(reason),
    )
    cancelled += b'"_meta":{"%b":%b%b' % (SUBSCRIPTION_ID.encode("ascii"), subscription_id, _TAIL)
    result = b'%b{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete","_meta":{"%b":%b,"%b":%b%b' % (
        _START,
        subscription_id,
        SUBSCRIPTION_ID.encode("ascii"),
        subscription_id,
        SERVER_INFO.encode("ascii"),
        server_info,
        _TAIL,
    )
    return cancelled + result
