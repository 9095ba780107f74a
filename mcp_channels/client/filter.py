"""
The filter of MCP 2026-07-28 (basic/patterns/subscriptions), as the client asks for it and as the server grants it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

LIST_FIELDS: Final = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
"""The field of each notification that a boolean asks for."""

UPDATED: Final = "notifications/resources/updated"
TASKS: Final = "notifications/tasks"
"""What the methods of task notifications begin with."""

_FIELDS: Final = {
    **{name: name for name in (*LIST_FIELDS.values(), "resourceSubscriptions", "taskIds")},
    "tools_list_changed": "toolsListChanged",
    "prompts_list_changed": "promptsListChanged",
    "resources_list_changed": "resourcesListChanged",
    "resource_subscriptions": "resourceSubscriptions",
    "task_ids": "taskIds",
}
# A path, a query and a fragment each begin with one of these.
_BOUNDARIES: Final = ("/", "?", "#")


@dataclass(frozen=True)
class Filter:
    """
    What is listened for: list changes by their field's name, resource URIs, task ids. Order is kept, doubles collapse.
    """

    kinds: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    @classmethod
    def parse(cls, asked: object) -> "Filter":
        """
        The filter that a caller wrote, in camelCase or snake_case. False, None and an empty list ask for nothing; a
        filter that asks for nothing at all is one.

        Raises:
            TypeError: it is no mapping, or a field has the wrong type.
            ValueError: a field is unknown, or given in both spellings.
        """
        if isinstance(asked, cls):
            return asked
        if not isinstance(asked, Mapping):
            raise TypeError(f"A filter is a mapping, not {asked!r}")
        fields: dict[str, Any] = {}
        for name, value in asked.items():
            field = _FIELDS.get(name) if isinstance(name, str) else None
            if field is None:
                raise ValueError(f"{name!r} is no field of a filter; these are: {', '.join(sorted(_FIELDS))}")
            if field in fields:
                raise ValueError(f"{field!r} is given in both spellings")
            fields[field] = value
        return cls(
            tuple(field for field in LIST_FIELDS.values() if _boolean(field, fields.get(field))),
            _strings("resourceSubscriptions", fields.get("resourceSubscriptions")),
            _strings("taskIds", fields.get("taskIds")),
        )

    @classmethod
    def honoured(cls, granted: Mapping[str, Any]) -> "Filter":
        """
        The filter of an acknowledgment. What isn't as it should be counts as not granted.
        """
        return cls(
            tuple(field for field in LIST_FIELDS.values() if granted.get(field) is True),
            _granted(granted.get("resourceSubscriptions")),
            _granted(granted.get("taskIds")),
        )

    def __bool__(self) -> bool:
        return bool(self.kinds or self.uris or self.tasks)

    def to_wire(self) -> dict[str, Any]:
        """
        The filter as it is on the wire.
        """
        wire: dict[str, Any] = dict.fromkeys(self.kinds, True)
        if self.uris:
            wire["resourceSubscriptions"] = list(self.uris)
        if self.tasks:
            wire["taskIds"] = list(self.tasks)
        return wire

    def without(self, other: "Filter") -> "Filter":
        """
        What this filter has and ``other`` has not.
        """
        kinds, uris, tasks = set(other.kinds), set(other.uris), set(other.tasks)
        return Filter(
            tuple(kind for kind in self.kinds if kind not in kinds),
            tuple(uri for uri in self.uris if uri not in uris),
            tuple(task for task in self.tasks if task not in tasks),
        )

    def admits(self, method: str, params: Mapping[str, Any], *, below: bool = True) -> bool:
        """
        Whether a notification is one of those that were granted. With ``below``, a resource that lies under a granted
        URI is: the protocol lets a server name it (MCP 2026-07-28 server/resources).
        """
        if (field := LIST_FIELDS.get(method)) is not None:
            return field in self.kinds
        if method == UPDATED:
            uri = params.get("uri")
            return isinstance(uri, str) and (uri in self.uri_set or (below and self._covers(uri)))
        return method.startswith(TASKS) and params.get("taskId") in self.tasks

    @cached_property
    def uri_set(self) -> frozenset[str]:
        """
        The URIs, to look one up.
        """
        return frozenset(self.uris)

    def _covers(self, uri: str) -> bool:
        return any(lies_below(uri, granted) for granted in self.uris)


def lies_below(uri: str, parent: str) -> bool:
    """
    Whether ``uri`` goes on where ``parent`` ends, at the boundary of a part.
    """
    if not uri.startswith(parent) or len(uri) == len(parent):
        return False
    return parent.endswith(_BOUNDARIES) or uri[len(parent)] in _BOUNDARIES


def _boolean(field: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise TypeError(f"{field!r} is True or False, not {value!r}")


def _strings(field: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise TypeError(f"{field!r} is a list of strings, not {value!r}")
    items = list(value)
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"{field!r} holds {item!r}, which is no string")
    return tuple(dict.fromkeys(items))


def _granted(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for item in value if isinstance(item, str))) if isinstance(value, list) else ()
