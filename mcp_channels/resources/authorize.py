"""
Which resources a caller may read, and so subscribe to: one rule, asked by both.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from mcp_channels.auth.principals import Caller
from mcp_channels.resources.model import ModelResource


def readable(resources: Iterable[ModelResource], caller: Caller, uris: Sequence[str]) -> set[str]:
    """
    Those of ``uris`` that one of ``resources`` lets ``caller`` read. Blocks; one query for each resource concerned.
    """
    found: set[str] = set()
    for resource in resources:
        left = [uri for uri in uris if uri not in found]
        if not left:
            break
        found |= resource.readable(caller, left)
    return found


def find(resources: Iterable[ModelResource], caller: Caller, uri: str) -> tuple[ModelResource, Any] | None:
    """
    The resource and the row at ``uri``, if ``caller`` may read it. Blocks.
    """
    for resource in resources:
        row = resource.find(caller, uri)
        if row is not None:
            return resource, row
    return None
