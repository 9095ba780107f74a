"""
What one process tells those that hold streams: end this one, look again whether that one may still listen.

An order is written on the stream's row, where the node that holds the stream finds it within a second; the message over
the channel layer only makes it faster. So it holds while the layer is down, and vanishes with its transaction.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final

from django.db import router, transaction

from mcp_channels import topics
from mcp_channels.listen.stream import Reason
from mcp_channels.models import LiveStream, LiveStreamQuerySet
from mcp_channels.publisher import publisher

CHECK: Final = "check"
"""The order to look again whether a stream may still listen; every other order is the reason for its end."""

ENDED: Final = "ended"
"""No order, but the word that one was carried out."""

PORTION: Final = 500
"""The most orders in one message, and the most rows in one statement."""

Order = tuple[int, str]
"""The key of a stream's row, and what to do with it."""


def disconnect(streams: LiveStreamQuerySet, *, reason: Reason = "revoked") -> int:
    """
    End streams, wherever they are, when the transaction commits; they are gone within two seconds. Returns how many
    there are. Blocks.
    """
    return _order(streams.exclude(state=LiveStream.State.ENDING), reason)


def check(streams: LiveStreamQuerySet) -> int:
    """
    Have it looked at again, when the transaction commits, whether streams may still listen; until that is known, they
    are told nothing. Returns how many there are. Blocks.
    """
    return _order(streams.exclude(state=LiveStream.State.ENDING), CHECK)


def send(orders: Iterable[Order]) -> None:
    """
    Tell every node of orders that stand on the rows. Returns at once.
    """
    publisher.tell(_messages(list(orders)))


def read(message: dict[str, object]) -> Iterator[Order]:
    """
    The orders in a message; what is malformed is skipped.
    """
    try:
        entries = json.loads(message["orders"])  # type: ignore[arg-type]  # what is no text is refused
    except (KeyError, TypeError, ValueError):
        return
    if not isinstance(entries, list):
        return
    for entry in entries:
        match entry:
            case [int(key), str(what)]:
                yield key, what
            case _:
                continue


def _order(streams: LiveStreamQuerySet, what: str) -> int:
    using = router.db_for_write(LiveStream)
    keys = list(streams.using(using).order_by().values_list("pk", flat=True))
    rows = LiveStream.objects.using(using).exclude(state=LiveStream.State.ENDING)
    with transaction.atomic(using=using):
        for start in range(0, len(keys), PORTION):
            some = rows.filter(pk__in=keys[start : start + PORTION])
            if what == CHECK:
                some.update(state=LiveStream.State.CHECK)
            else:
                some.update(state=LiveStream.State.ENDING, reason=what)
    if keys:
        transaction.on_commit(lambda: send((key, what) for key in keys), using=using, robust=True)
    return len(keys)


def _messages(orders: list[Order]) -> Iterator[dict[str, object]]:
    for start in range(0, len(orders), PORTION):
        yield {"type": topics.ORDERS, "orders": json.dumps(orders[start : start + PORTION])}
