"""
Notifications for the queryset methods that send no signals.
"""

from collections.abc import Iterable
from typing import Any

from django.db import models, transaction

from mcp_channels import topics
from mcp_channels.notify import publish
from mcp_channels.resources.watch import notify_objects, resources_of


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
        with transaction.atomic(using=self.db, savepoint=False):
            keys = list(self.values_list("pk", flat=True))
            rows = self.model._base_manager.using(self.db).filter(pk__in=keys)
            before = [uri for resource in resources for uri in resource.uris_of(rows)]
            count = super().update(**kwargs)
            after = (
                [uri for resource in resources for uri in resource.uris_of(rows)] if _moves(resources, kwargs) else []
            )
            changed = [topics.resource(uri) for uri in dict.fromkeys([*before, *after])]
            if set(after) - set(before):
                changed.append(topics.RESOURCES)
            publish(*changed, using=self.db)
        return count

    update.alters_data = True  # type: ignore[attr-defined]  # Django's mark against calls from templates

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
