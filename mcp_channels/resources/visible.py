"""
Which of many rows a queryset has.

The ORM's ``filter(pk__in=…)`` looks at each value several times, and takes longer than the database takes to find the
rows. So the queryset is compiled as it is, and asked about the values from around it; two querysets that say the same
are one question.
"""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections, models

Row = tuple[Any, ...]

Memory = dict[tuple[str, str, str], tuple[set[Row], set[Row]]]
"""What was asked and found so far: by database, statement and its arguments, as text."""


def among(
    queryset: models.QuerySet[Any], lookups: Sequence[str], values: Sequence[Row], *, memory: Memory | None = None
) -> set[Row]:
    """
    Those of ``values`` (each a tuple, one value for each of the lookups) that rows of ``queryset`` have, and perhaps
    others. The values must be of types that the database takes and gives as they are. Blocks; asks at most one query.
    """
    using = queryset.db
    # The order costs, and means something in a slice alone.
    unordered = queryset if queryset.query.is_sliced else queryset.order_by()
    try:
        sql, arguments = unordered.values_list(*lookups).query.get_compiler(using=using).as_sql()
    except EmptyResultSet:
        return set()
    key = (using, sql, repr(arguments))
    asked, found = (memory or {}).get(key, (set(), set()))
    left = [row for row in values if row not in asked]
    if left:
        rows = _ask(using, sql, arguments, left)
        asked, found = asked.union(left), found | rows
        if memory is not None:
            memory[key] = asked, found
    return found


def _ask(using: str, sql: str, arguments: Sequence[Any], values: Sequence[Row]) -> set[Row]:
    connection = connections[using]
    columns = [connection.ops.quote_name(f"c{number}") for number in range(len(values[0]))]
    conditions = []
    wanted: list[Any] = []
    # With several columns this finds more than was asked for; the caller compares.
    for column, column_values in zip(columns, zip(*values, strict=True), strict=True):
        distinct = dict.fromkeys(column_values)
        conditions.append(f"{column} IN ({', '.join(['%s'] * len(distinct))})")
        wanted.extend(distinct)
    names = ", ".join(columns)
    statement = f"WITH visible ({names}) AS ({sql}) SELECT {names} FROM visible WHERE {' AND '.join(conditions)}"  # noqa: S608  # the ORM's own statement
    with connection.cursor() as cursor:
        cursor.execute(statement, [*arguments, *wanted])
        return {tuple(row) for row in cursor.fetchall()}
