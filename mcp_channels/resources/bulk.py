"""
Notifications for the queryset methods that send no signals.
"""

from collections.abc import Iterable
from typing import Any, Final

from django.db import models, transaction

from mcp_channels import topics
from mcp_channels.batching import portions
from mcp_channels.notify import publish
from mcp_channels.resources.model import ModelResource
from mcp_channels.resources.watch import notify_objects, resources_of

MOST_NAMED: Final = 10_000
"""The most rows that an update names; past it, hubs are told that anything may have changed."""

PORTION: Final = 500
"""The most keys in one query: databases have limits of their own."""


class NotifyingQuerySet(models.QuerySet[Any]):
    """
    Makes ``update()``, ``bulk_create()`` and ``bulk_update()`` of a registered model notify after the commit.

    Give the model a manager of it, ``objects = NotifyingQuerySet.as_manager()``, or derive your own queryset from it.
    ``update()`` asks two queries more, for its rows and their URIs. Raw SQL sends nothing: call ``notify_objects()``.
    """

    def update(self, **kwargs: Any) -> int:
        """
        As Django's; the rows that matched are notified of, under their old URI and their new one.
        """
        resources = resources_of(self.model)
        if not resources:
            return super().update(**kwargs)
        # Where reads go to a replica, this must not.
        self._for_write = True
        with transaction.atomic(using=self.db, savepoint=False):
            keys = list(self.values_list("pk", flat=True))
            if len(keys) > MOST_NAMED:
                count = super().update(**kwargs)
                publish(topics.EVERYTHING, using=self.db)
                return count
            before = self._uris(resources, keys)
            count = super().update(**kwargs)
            after = self._uris(resources, keys) if _moves(resources, kwargs) else []
            changed = [topics.resource(uri) for uri in dict.fromkeys([*before, *after])]
            if set(after) - set(before):
                changed.append(topics.RESOURCES)
            publish(*changed, using=self.db)
        return count

    update.alters_data = True  # type: ignore[attr-defined]  # Django's mark against calls from templates

    def _uris(self, resources: Iterable[ModelResource], keys: list[Any]) -> list[str]:
        rows = self.model._base_manager.using(self.db)
        return [
            uri
            for resource in resources
            for some in portions(keys, PORTION)
            for uri in resource.uris_of(rows.filter(pk__in=some))
        ]

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """
        As Django's; each row, and the list, are notified of.
        """
        created = super().bulk_create(objs, *args, **kwargs)
        # Some databases don't give the keys back; then only the list is known to have changed.
        notify_objects([row for row in created if row.pk is not None], listed=bool(created), using=self.db)
        return created


def _moves(resources: Iterable[Any], fields: Iterable[str]) -> bool:
    parts = {lookup.split("__")[0] for resource in resources for lookup in resource.lookups}
    return not parts.isdisjoint(fields)
