"""
What a client asked to hear of, and what it was granted (MCP 2026-07-28 basic/patterns/subscriptions, "Notification
Filter").
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mcp_channels import topics
from mcp_channels.topics import Topic

LIST_FIELDS: Final[Mapping[str, str]] = {
    "toolsListChanged": "tools",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}
"""The filter's boolean fields, and what each is about."""


class FilterError(ValueError):
    """
    The filter cannot be read; the message says which field is wrong, and may be shown to the client.
    """


@dataclass(frozen=True, slots=True)
class Filter:
    """
    A filter, as asked for or as honoured.
    """

    lists: frozenset[str] = frozenset()
    """The lists whose changes are wanted: of ``tools``, ``prompts``, ``resources``."""

    resource_subscriptions: tuple[str, ...] = ()
    """The URIs of the resources whose changes are wanted, each once, in the client's order."""

    task_ids: tuple[str, ...] = ()
    """The ids of the tasks whose changes are wanted, each once, in the client's order."""

    @classmethod
    def of(cls, wanted: Iterable[Topic]) -> "Filter":
        """
        The filter that asks for these topics.
        """
        lists = frozenset(topic.kind for topic in wanted if topic.kind != "resource")
        return cls(lists, tuple(topic.key for topic in wanted if topic.kind == "resource"))

    def narrow(self, *, lists: Collection[str], uris: Collection[str], task_ids: Collection[str] = ()) -> "Filter":
        """
        What of this filter is within ``lists``, ``uris`` and ``task_ids``; order is kept.
        """
        return replace(
            self,
            lists=self.lists.intersection(lists),
            resource_subscriptions=tuple(uri for uri in self.resource_subscriptions if uri in uris),
            task_ids=tuple(task_id for task_id in self.task_ids if task_id in task_ids),
        )

    def topics(self) -> Iterator[Topic]:
        """
        The topics that a stream with this honoured filter joins.
        """
        for name in ("tools", "prompts", "resources"):
            if name in self.lists:
                yield Topic(name)
        for uri in self.resource_subscriptions:
            yield topics.resource(uri)

    def kinds(self) -> tuple[str, ...]:
        """
        The names of the fields in use, for logs and telemetry: kinds only, never a URI or an id.
        """
        return tuple(self.to_wire())

    def to_wire(self) -> dict[str, object]:
        """
        The ``notifications`` member of the acknowledgment: what isn't honoured is left out.
        """
        wire: dict[str, object] = {field: True for field, name in LIST_FIELDS.items() if name in self.lists}
        if self.resource_subscriptions:
            wire["resourceSubscriptions"] = list(self.resource_subscriptions)
        if self.task_ids:
            wire["taskIds"] = list(self.task_ids)
        return wire


def parse(params: Mapping[str, object], *, max_entries: int) -> Filter:
    """
    Read the filter out of a listen request's ``params``. Unknown fields are ignored.

    Raises:
        FilterError: ``notifications`` is missing or no object, a field has the wrong type, or a list is too long.
    """
    if "notifications" not in params:
        raise FilterError("params.notifications is required")
    notifications = params["notifications"]
    if not isinstance(notifications, Mapping):
        raise FilterError("params.notifications must be an object")
    return Filter(
        lists=frozenset(name for field, name in LIST_FIELDS.items() if _flag(notifications, field)),
        resource_subscriptions=_strings(notifications, "resourceSubscriptions", max_entries),
        task_ids=_strings(notifications, "taskIds", max_entries),
    )


def _flag(notifications: Mapping[str, object], field: str) -> bool:
    value = notifications.get(field)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise FilterError(f"notifications.{field} must be a boolean")


def _strings(notifications: Mapping[str, object], field: str, max_entries: int) -> tuple[str, ...]:
    value = notifications.get(field)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise FilterError(f"notifications.{field} must be a list of strings")
    if len(value) > max_entries:
        raise FilterError(f"notifications.{field} has {len(value)} entries; at most {max_entries} are served")
    if not all(isinstance(entry, str) for entry in value):
        raise FilterError(f"notifications.{field} must be a list of strings")
    return tuple(dict.fromkeys(value))
