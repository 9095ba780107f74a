"""
Which resources a caller may read, and so subscribe to: one rule, asked by both.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.db import DatabaseError, InterfaceError

from mcp_channels.auth.principals import Caller
from mcp_channels.batching import portions
from mcp_channels.resources.model import ModelResource
from mcp_channels.resources.visible import Memory

PORTION: Final = 1000
"""The most URIs in one query: databases have limits of their own."""

logger = logging.getLogger("mcp_channels.resources")


def readable(
    resources: Sequence[ModelResource], caller: Caller, uris: Sequence[str], *, memory: Memory | None = None
) -> set[str]:
    """
    Those of ``uris`` that one of ``resources`` lets ``caller`` read. Blocks; one query for each resource concerned and
    each ``PORTION`` of the URIs. ``memory`` is of callers who are looked at together: those who may see the same, and
    ask for the same, share the query.
    """
    return set().union(*(_readable(resources, caller, some, memory) for some in portions(uris, PORTION)))


def _readable(
    resources: Sequence[ModelResource], caller: Caller, uris: Sequence[str], memory: Memory | None
) -> set[str]:
    found: set[str] = set()
    for resource in resources:
        left = [uri for uri in uris if uri not in found]
        if not left:
            break
        try:
            found |= resource.readable(caller, left, memory=memory)
        except (DatabaseError, InterfaceError):
            raise
        except Exception:  # a project's own rule may fail; then it lets nobody in, and the other rules still count
            logger.exception("The rule of %s failed; nobody is let in by it", type(resource).__name__)
    return found


def absent(resources: Sequence[ModelResource], caller: Caller, uris: Sequence[str]) -> set[str]:
    """
    Those of ``uris`` that could be rows of ``resources`` which ``caller`` has the scope for, and are none. Blocks.
    """
    return set().union(*(item.absent(caller, some) for some in portions(uris, PORTION) for item in resources))


def find(resources: Iterable[ModelResource], caller: Caller, uri: str) -> tuple[ModelResource, Any] | None:
    """
    The resource and the row at ``uri``, if ``caller`` may read it. Blocks.
    """
    for resource in resources:
        row = resource.find(caller, uri)
        if row is not None:
            return resource, row
    return None
