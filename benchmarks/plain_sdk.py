"""
The official SDK's server as an ASGI application: its own listen handler and bus, no authentication, no Django.

``BENCHMARK_MAX_SUBSCRIPTIONS`` in the environment raises the listen handler's limit.
"""

import os

import mcp_types as types
from mcp.server.mcpserver import MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

from benchmarks.tools import publish

_bus = InMemorySubscriptionBus()
server = MCPServer("notes", version="1.0.0", subscriptions=_bus, log_level="WARNING")
# The limit is an argument of the SDK's handler, which MCPServer doesn't pass on.
server._lowlevel_server.add_request_handler(
    "subscriptions/listen",
    types.SubscriptionsListenRequestParams,
    ListenHandler(_bus, max_subscriptions=int(os.environ.get("BENCHMARK_MAX_SUBSCRIPTIONS", "1024"))),
)


@server.resource("note://{pk}")
def note(pk: str) -> str:
    """
    A note.
    """
    return pk


server.tool()(publish)
application = server.streamable_http_app()
