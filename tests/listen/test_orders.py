"""
Orders on the rows of streams, and the messages that make them faster.
"""

import json

import pytest
from django.db import transaction

from mcp_channels import topics
from mcp_channels.listen import orders
from mcp_channels.models import LiveStream, Node, Principal


@pytest.fixture
def make(transactional_db):
    """
    A function that makes the rows of streams.
    """
    node = Node.objects.create(id="a" * 32, host="web", pid=1)

    def make(count=1, **fields):
        rows = [LiveStream(node=node, endpoint="notes", **fields) for _ in range(count)]
        return LiveStream.objects.bulk_create(rows)

    return make


def read(messages):
    return [order for message in messages for order in orders.read(message)]


def test_an_end_stands_on_the_row_and_is_told(make, told):
    [stream, other] = make(2)
    assert orders.disconnect(LiveStream.objects.filter(pk=stream.pk)) == 1
    stream.refresh_from_db()
    assert (stream.state, stream.reason) == ("ending", "revoked")
    assert read(told) == [(stream.pk, "revoked")]
    other.refresh_from_db()
    assert (other.state, other.reason) == ("open", "")


def test_the_first_end_of_a_stream_stands(make, told):
    make()
    assert orders.disconnect(LiveStream.objects.all(), reason="superseded") == 1
    assert orders.disconnect(LiveStream.objects.all()) == 0
    assert LiveStream.objects.get().reason == "superseded"
    assert [reason for _, reason in read(told)] == ["superseded"]


def test_an_end_takes_the_place_of_a_look(make, told):
    principal = Principal.objects.create(name="alice")
    make(principal=principal)
    orders.check([principal.pk])
    assert LiveStream.objects.get().state == "check"
    orders.disconnect(LiveStream.objects.all())
    orders.check([principal.pk])
    assert LiveStream.objects.get().state == "ending"


def test_an_order_waits_for_the_commit(make, told):
    principal = Principal.objects.create(name="alice")
    make(principal=principal)
    with transaction.atomic():
        orders.check([principal.pk])
        orders.disconnect(LiveStream.objects.all())
        assert told == []
    assert [message["type"] for message in told] == [topics.ORDERS] * 2


def test_a_look_is_ordered_of_the_streams_that_there_are_at_the_commit(make, told):
    """
    No row is written, and so locked, before; and one that was let in meanwhile is not forgotten.
    """
    principal = Principal.objects.create(name="alice")
    make(principal=principal)
    with transaction.atomic():
        orders.check([principal.pk])
        assert LiveStream.objects.get().state == "open"
        make(principal=principal)
    assert list(LiveStream.objects.values_list("state", flat=True)) == ["check", "check"]


def test_an_order_vanishes_with_its_transaction(make, told):
    principal = Principal.objects.create(name="alice")
    make(principal=principal)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        orders.check([principal.pk])
        orders.disconnect(LiveStream.objects.all())
        1 / 0  # noqa: B018
    assert told == []
    assert LiveStream.objects.get().state == "open"


def test_what_concerns_nobody_is_not_told(make, told):
    assert orders.disconnect(LiveStream.objects.all()) == 0
    orders.check([])
    orders.send([])
    assert told == []


def test_a_principal_without_a_stream_is_told_all_the_same(make, told):
    """
    One may be being let in just now.
    """
    orders.check({7})
    assert [orders.principals(message) for message in told] == [{7}]


def test_orders_for_very_many_go_in_portions(make, told, django_assert_num_queries):
    principals = Principal.objects.bulk_create([Principal(name=f"p{number}") for number in range(1201)])
    keys = [principal.pk for principal in principals]
    node = make()[0].node
    LiveStream.objects.bulk_create([LiveStream(node=node, endpoint="notes", principal_id=key) for key in keys])
    # One for each portion, BEGIN and COMMIT.
    with django_assert_num_queries(3 + 2):
        orders.check(keys)
    assert LiveStream.objects.filter(state="check").count() == 1201
    assert [len(orders.principals(message)) for message in told] == [500, 500, 201]
    assert set().union(*map(orders.principals, told)) == set(keys)
    told.clear()
    assert orders.disconnect(LiveStream.objects.all()) == 1202
    assert [len(list(orders.read(message))) for message in told] == [500, 500, 202]
    assert not LiveStream.objects.exclude(state="ending").exists()


def test_a_message_carries_what_any_layer_can(told):
    orders.send([(1, "revoked"), (2, orders.ENDED)])
    [message] = told
    assert json.loads(json.dumps(message)) == message
    assert all(isinstance(value, str) for value in message.values())


@pytest.mark.parametrize(
    "text",
    [None, 7, "{", "{}", "7", b"\xff", '[[2], [[], "revoked"], ["5", "revoked"], [6, "revoked", 1], null, "1", 1.5]'],
)
def test_what_is_malformed_orders_nothing(text):
    assert list(orders.read({"orders": text})) == []
    assert orders.principals({"principals": text}) == set()


def test_a_message_of_another_kind_orders_nothing():
    assert list(orders.read({})) == []
    assert orders.principals({}) == set()


def test_what_is_well_formed_beside_it_counts():
    assert list(orders.read({"orders": '[null, [1, "revoked"], [2]]'})) == [(1, "revoked")]
    assert orders.principals({"principals": '[null, 1, "2"]'}) == {1}
