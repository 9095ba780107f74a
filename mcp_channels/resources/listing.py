"""
Lists of model resources, page by page (MCP 2026-07-28 server/utilities/pagination).

A cursor says with which resource, and after which of its rows, the next page begins; to a client it is opaque.
"""

import base64
import binascii
import json
from collections.abc import Sequence

import mcp_types as types

from mcp_channels.auth.principals import Caller
from mcp_channels.resources.model import ModelResource


def page(
    resources: Sequence[ModelResource], caller: Caller, cursor: str | None, *, limit: int
) -> tuple[list[types.Resource], str | None]:
    """
    At most ``limit`` rows that ``caller`` may read, and the cursor of the next page; None at the end. Blocks.

    Raises:
        ValueError: the cursor is none that was given out.
    """
    index, after = (0, None) if cursor is None else _read_cursor(cursor, len(resources))
    listed: list[types.Resource] = []
    while index < len(resources) and len(listed) < limit:
        resource = resources[index]
        rows, after = resource.page(caller, after=after, limit=limit - len(listed))
        listed.extend(
            types.Resource(uri=resource.uri_of(row), name=resource.get_name(row), mime_type=resource.mime_type)
            for row in rows
        )
        if after is not None:
            break
        index += 1
    return listed, _cursor(index, after) if index < len(resources) else None


def templates(resources: Sequence[ModelResource], caller: Caller) -> list[types.ResourceTemplate]:
    """
    The templates that ``caller`` may know of.
    """
    return [
        types.ResourceTemplate(
            uri_template=resource.uri,
            name=resource.name or str(resource.model._meta.verbose_name),
            title=resource.title,
            description=resource.description,
            mime_type=resource.mime_type,
        )
        for resource in resources
        if resource.is_offered(caller)
    ]


def _cursor(index: int, after: str | None) -> str:
    return base64.urlsafe_b64encode(json.dumps([index, after]).encode()).decode()


def _read_cursor(cursor: str, resources: int) -> tuple[int, str | None]:
    try:
        decoded = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
    except (RecursionError, binascii.Error) as error:
        raise ValueError("not a cursor") from error
    match decoded:
        case [int(index), None | str() as after] if 0 <= index < resources and not isinstance(index, bool):
            return index, after
    raise ValueError("not a cursor")
