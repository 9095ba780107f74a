"""
The names of the scopes that rows grant, in the query that loads the rows.
"""

from typing import Any

from django.db import models


class _Names(models.Aggregate):
    """
    A list of names, as JSON: what all databases have in common.
    """

    function = "JSON_ARRAYAGG"
    output_field = models.JSONField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSON_GROUP_ARRAY", **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSONB_AGG", **context)


def scope_names(through: type[models.Model], owner: str, key: str) -> models.Subquery:
    """
    The names of the scopes that rows of ``through`` give to the ``owner`` whom the outer query calls ``key``: a list,
    or None for no names. One row for each owner, where a join would repeat the owner for each name.
    """
    rows = through._default_manager.filter(**{owner: models.OuterRef(key)}).order_by().values(owner)
    return models.Subquery(rows.annotate(names=_Names("scope__name")).values("names"))
