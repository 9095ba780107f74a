"""
The one place that reaches into the official SDK: what its public interface doesn't offer (``mcp`` 2.x).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel


def set_handler(
    server: MCPServer[Any], method: str, params: type[BaseModel], handler: Callable[[Any, Any], Any]
) -> None:
    """
    Answer ``method`` with ``handler``, an async function of the SDK's request context and the params.
    """
    _lowlevel(server).add_request_handler(method, params, handler)


def withdraw(server: MCPServer[Any], methods: Iterable[str]) -> None:
    """
    Stop serving ``methods``: they are answered -32601, and the capabilities no longer name them.
    """
    for method in methods:
        _lowlevel(server)._request_handlers.pop(method, None)


def capabilities(server: MCPServer[Any], protocol_version: str) -> Any:
    """
    What the server advertises at this protocol version: the SDK's ``ServerCapabilities``.
    """
    return _lowlevel(server).get_capabilities(protocol_version=protocol_version)


def tools(server: MCPServer[Any]) -> list[Any]:
    """
    The server's tools: the SDK's ``Tool``.
    """
    return server._tool_manager.list_tools()


def server_info(server: MCPServer[Any]) -> dict[str, Any]:
    """
    The server's identity, as it goes on the wire.
    """
    return _lowlevel(server).server_info_stamp


def new_manager(server: MCPServer[Any], **options: Any) -> StreamableHTTPSessionManager:
    """
    A new session manager of the server; ``options`` are those of ``streamable_http_app()``. Host and Origin have been
    checked by Django's rules before a request comes to it.
    """
    # The SDK leaves the new manager on the server, where another thread may put its own before it is read.
    with _making:
        server.streamable_http_app(
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False), **options
        )
        return server.session_manager


@contextmanager
def logging_left_alone() -> Iterator[None]:
    """
    Make a server without the SDK's own logging set-up: logging is the Django project's business.
    """
    # The SDK calls logging.basicConfig(), which does nothing while the root logger has a handler.
    root, guard = logging.getLogger(), logging.NullHandler()
    root.addHandler(guard)
    try:
        yield
    finally:
        root.removeHandler(guard)


_making = threading.Lock()


def _lowlevel(server: MCPServer[Any]) -> Server[Any]:
    return server._lowlevel_server
