"""
What nodes write about themselves and their streams.
"""

from datetime import timedelta

import pytest
from django.utils import timezone

from mcp_channels.listen import registry
from mcp_channels.listen.registry import Delivery
from mcp_channels.models import LiveStream, Node, Principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def node():
    row = Node(id="here", host="h", pid=1)
    registry.register(row)
    return row


def stream(node, **fields):
    principal = fields.pop("principal", None) or Principal.objects.get_or_create(name="alice")[0]
    return LiveStream.objects.create(node=node, principal=principal, endpoint="e", **fields)


def ago(seconds):
    return timezone.now() - timedelta(seconds=seconds)


def test_a_beat_says_whether_the_node_is_still_there(node):
    Node.objects.update(seen_at=ago(15))
    assert 15 <= registry.beat("here") < 20
    assert Node.objects.get().seen_at > ago(5)
    registry.beat("here", "specific.x!y")
    assert Node.objects.get().channel == "specific.x!y"
    node.delete()
    assert registry.beat("here") is None


def test_a_node_that_is_silent_for_twenty_seconds_is_swept_with_its_streams(node):
    dead = Node.objects.create(id="dead", host="h", pid=2, seen_at=ago(21), channel="specific.x!y")
    slow = Node.objects.create(id="slow", host="h", pid=3, seen_at=ago(15))
    kept = {stream(node).pk, stream(slow).pk}
    stream(dead)
    assert registry.sweep("here") == {"dead": "specific.x!y"}
    assert set(Node.objects.values_list("pk", flat=True)) == {"here", "slow"}
    assert set(LiveStream.objects.values_list("pk", flat=True)) == kept


def test_a_node_does_not_sweep_itself(node):
    Node.objects.update(seen_at=ago(100))
    assert registry.sweep("here") == {}
    assert Node.objects.exists()


def test_the_streams_of_a_silent_node_are_not_live(node):
    stream(node)
    assert LiveStream.objects.live().count() == 1
    Node.objects.update(seen_at=ago(21))
    assert LiveStream.objects.live().count() == 0


def test_deliveries_are_written_by_the_databases_clock(node):
    first, second = stream(node), stream(node)
    registry.record({first.pk: Delivery(7, 30.0)})
    first.refresh_from_db()
    assert first.delivered == 7
    assert abs(first.last_delivery_at - ago(30)) < timedelta(seconds=5)
    second.refresh_from_db()
    assert (second.delivered, second.last_delivery_at) == (0, None)


def test_released_rows_are_gone_and_others_stay(node):
    rows = [stream(node).pk for _ in range(3)]
    registry.release(rows[:2])
    assert registry.still_there(rows) == {rows[2]}


def test_a_node_that_ends_takes_its_streams_along(node):
    other = Node.objects.create(id="there", host="h", pid=2)
    stream(node)
    kept = stream(other)
    registry.unregister("here")
    assert list(LiveStream.objects.all()) == [kept]


def test_streams_of_principals_and_tokens_that_are_none_any_more_are_found(node):
    inactive = Principal.objects.create(name="inactive", is_active=False)
    good = stream(node)
    wanted = {stream(node, principal=inactive).pk}
    orphan = stream(node)
    LiveStream.objects.filter(pk=orphan.pk).update(principal=None)
    wanted.add(orphan.pk)
    assert set(registry.unwanted("here")) == wanted
    assert good.pk not in wanted


def test_anonymous_callers_are_forgotten_unless_somebody_set_something(node):
    def caller(name, **fields):
        return Principal.objects.create(
            **{"name": f"anonymous:{name}", "is_anonymous": True, "last_listened_at": ago(7200), **fields}
        )

    caller("old")
    kept = [
        caller("new", last_listened_at=ago(60)),
        caller("never", last_listened_at=None),
        caller("capped", max_streams=1),
        caller("blocked", is_active=False),
        caller("noted", notes="a crawler"),
        caller("somebody", is_anonymous=False),
        caller("listening"),
    ]
    stream(node, principal=kept[-1])
    registry.forget()
    assert set(Principal.objects.all()) == set(kept)
