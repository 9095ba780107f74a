"""
The tool by which both servers are told to publish: the same function on each.
"""

from mcp.server.mcpserver import Context


async def publish(context: Context, uris: list[str]) -> int:
    """
    Say of each URI that it changed, one after another.
    """
    for uri in uris:
        await context.notify_resource_updated(uri)
    return len(uris)
