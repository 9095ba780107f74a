"""
What the nodes write in the database about themselves and their streams, and read there. Every function blocks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, NamedTuple

from django.db import connections, router, transaction
from django.db.models import Q
from django.db.models.functions import Now

from mcp_channels.batching import portions
from mcp_channels.listen.orders import CHECK, PORTION, Order
from mcp_channels.models import DEAD_AFTER, LiveStream, Node, Principal

FORGET_AFTER: Final = timedelta(hours=1)
"""How long an anonymous caller's principal is kept after its last listen."""

LOCK_TIMEOUT: Final = 500
"""Milliseconds for which a node waits for a row."""


class Delivery(NamedTuple):
    """
    What a stream has delivered.
    """

    total: int
    seconds_ago: float
    """When the last of it went."""


def register(node: Node) -> None:
    """
    Write a node's row.
    """
    node.save(using=_using(), force_insert=True)


@contextmanager
def impatient() -> Iterator[None]:
    """
    A transaction that fails where it would have to wait for a row which a transaction of the project holds: that one
    may last. On PostgreSQL; other databases give up by themselves.
    """
    connection = connections[_using()]
    with transaction.atomic(using=connection.alias):
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                # For this transaction alone: a connection may be a pool's.
                cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT}")
        yield


def beat(node: str, channel: str = "") -> float | None:
    """
    Say that a node lives, and where it hears the layer, and return for how many seconds it had not said so. None: it
    was taken for dead, and its row is gone.
    """
    rows = Node.objects.using(_using()).filter(pk=node)
    row = rows.annotate(now=Now()).values_list("seen_at", "now").first()
    if row is None or not rows.update(seen_at=Now(), channel=channel):
        return None
    seen_at, now = row
    return float((now - seen_at).total_seconds())


def orders_for(node: str) -> list[Order]:
    """
    The orders that stand on a node's streams. Those to check are to be taken off the rows then: see ``take_checks``.
    """
    rows = LiveStream.objects.using(_using()).filter(
        node=node, state__in=(LiveStream.State.CHECK, LiveStream.State.ENDING)
    )
    return [
        (key, CHECK if state == LiveStream.State.CHECK else reason)
        for key, state, reason in rows.order_by().values_list("pk", "state", "reason")
    ]


def unwanted(node: str) -> list[int]:
    """
    A node's streams whose principal is gone or not active, or whose token is revoked, whatever it was that did so.
    """
    rows = LiveStream.objects.using(_using()).going_on().filter(node=node)
    is_over = Q(principal=None) | Q(principal__is_active=False) | Q(token__revoked_at__isnull=False)
    return list(rows.filter(is_over).order_by().values_list("pk", flat=True))


def take_checks(keys: Collection[int]) -> None:
    """
    Take orders to check off the streams' rows: from here on, a new one is another order.
    """
    if keys:
        streams = LiveStream.objects.using(_using()).filter(pk__in=keys, state=LiveStream.State.CHECK)
        with impatient():
            streams.update(state=LiveStream.State.OPEN)


def still_there(keys: Collection[int]) -> set[int]:
    """
    Those of the streams that have a row.
    """
    return set(LiveStream.objects.using(_using()).filter(pk__in=keys).values_list("pk", flat=True))


def release(keys: Sequence[int]) -> None:
    """
    Delete the rows of streams that have ended.
    """
    for some in portions(keys, PORTION):
        LiveStream.objects.using(_using()).filter(pk__in=some).delete()


def unregister(node: str) -> None:
    """
    Delete a node's row, and its streams'.
    """
    Node.objects.using(_using()).filter(pk=node).delete()


def record(deliveries: Mapping[int, Delivery]) -> None:
    """
    Write what streams have delivered.
    """
    connection = connections[_using()]
    table = connection.ops.quote_name(LiveStream._meta.db_table)
    # One statement with many arguments: the ORM would write one long statement, which takes longer to make than to run.
    now = Node.objects.using(connection.alias).annotate(now=Now()).values_list("now", flat=True).first()
    if now is None:
        return
    adapt = connection.ops.adapt_datetimefield_value
    rows = [
        (item.total, adapt(now - timedelta(seconds=item.seconds_ago)), key) for key, item in sorted(deliveries.items())
    ]
    with impatient(), connection.cursor() as cursor:
        cursor.executemany(f"UPDATE {table} SET delivered = %s, last_delivery_at = %s WHERE id = %s", rows)  # noqa: S608  # the name is the model's own


def sweep(node: str) -> dict[str, str]:
    """
    Delete the rows of nodes that died, and of their streams. Returns the nodes, each with its channel.
    """
    dead = Node.objects.using(_using()).exclude(pk=node).filter(seen_at__lt=Now() - DEAD_AFTER)
    found = dict(dead.values_list("pk", "channel"))
    if found:
        with impatient():
            # One that has come back to life meanwhile says so in its own transaction, and stays.
            dead.filter(pk__in=found).delete()
            alive = set(Node.objects.using(_using()).filter(pk__in=found).values_list("pk", flat=True))
        return {key: channel for key, channel in found.items() if key not in alive}
    return found


def forget() -> None:
    """
    Delete the principals of anonymous callers who have not listened for long, unless somebody set something about them.
    """
    forgotten = Principal.objects.using(_using()).filter(
        is_anonymous=True,
        is_active=True,
        max_streams=None,
        notes="",
        streams=None,
        last_listened_at__lt=Now() - FORGET_AFTER,
    )
    keys = list(forgotten.values_list("pk", flat=True)[:PORTION])
    if keys:
        with impatient():
            forgotten.filter(pk__in=keys).delete()


def _using() -> str:
    return router.db_for_write(LiveStream)
