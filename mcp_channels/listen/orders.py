"""
What one process tells those that hold streams: end this one, look again whether this principal's may still listen.

An order stands on the stream's row, where the node that holds the stream finds it within a second; the message over the
channel layer only makes it faster. So it holds while the layer is down, and vanishes with its transaction.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from django.db import router, transaction

from mcp_channels import topics
from mcp_channels.batching import portions
from mcp_channels.listen.stream import Reason
from mcp_channels.models import LiveStream, LiveStreamQuerySet
from mcp_channels.publisher import publisher

CHECK: Final = "check"
"""The order to look again whether a stream may still listen. Every other order is the reason for its end."""

RECEIVED: Final = "received"
"""No order, but the word that one has come to the stream's holder."""

ENDED: Final = "ended"
"""No order, but the word that a stream has ended."""

PORTION: Final = 500
"""The most orders in one message, and the most rows in one statement."""

Order = tuple[int, str]
"""The key of a stream's row, and what to do with it."""


def disconnect(streams: LiveStreamQuerySet, *, reason: Reason = "revoked") -> int:
    """
    End streams, wherever they are, when the transaction commits; they are gone within two seconds. Returns how many
    there are. Blocks.
    """
    using = router.db_for_write(LiveStream)
    rows = LiveStream.objects.using(using).going_on()
    keys = list(streams.using(using).going_on().order_by().values_list("pk", flat=True))
    with transaction.atomic(using=using):
        for some in portions(keys, PORTION):
            rows.filter(pk__in=some).update(state=LiveStream.State.ENDING, reason=reason)
    if keys:
        transaction.on_commit(lambda: send((key, reason) for key in keys), using=using, robust=True)
    return len(keys)


def check(principals: Collection[int]) -> None:
    """
    Have it looked at again, when the transaction commits, whether the streams of these principals (by their keys) may
    still listen; until that is known, they are told nothing. Blocks.
    """
    using = router.db_for_write(LiveStream)
    rows = LiveStream.objects.using(using).filter(state=LiveStream.State.OPEN)
    keys = sorted(principals)

    def order() -> None:
        with transaction.atomic(using=using):
            for some in portions(keys, PORTION):
                rows.filter(principal__in=some).update(state=LiveStream.State.CHECK)
        publisher.tell(_checks(keys))

    if keys:
        # Nothing is written before: a transaction may last, and the node would have to wait for its locks.
        transaction.on_commit(order, using=using, robust=True)


def send(orders: Iterable[Order]) -> None:
    """
    Tell every node of orders that stand on the rows. Returns at once.
    """
    publisher.tell({"type": topics.ORDERS, "orders": json.dumps(some)} for some in portions(list(orders), PORTION))


def read(message: dict[str, object]) -> Iterator[Order]:
    """
    The orders about streams in a message; what is malformed is skipped.
    """
    for entry in _list(message.get("orders")):
        match entry:
            case [int(key), str(what)]:
                yield key, what
            case _:
                continue


def principals(message: dict[str, object]) -> set[int]:
    """
    The keys of the principals in a message, whose streams are to be checked.
    """
    return {key for key in _list(message.get("principals")) if isinstance(key, int)}


def _checks(keys: list[int]) -> Iterator[dict[str, object]]:
    for some in portions(keys, PORTION):
        yield {"type": topics.ORDERS, "principals": json.dumps(some)}


def _list(text: object) -> list[object]:
    try:
        entries = json.loads(text)  # type: ignore[arg-type]  # what is no text is refused
    except (TypeError, ValueError):
        return []
    return entries if isinstance(entries, list) else []
