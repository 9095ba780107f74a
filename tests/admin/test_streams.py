"""
Live streams in the admin: seen, found and ended, and nothing else.
"""

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_channels.models import LiveStream, Principal


def listed(admin, **query) -> list[int]:
    return sorted(row.pk for row in admin.get("livestream/", **query).context["cl"].result_list)


def test_the_list_shows_what_is_open_and_how_much_in_all(admin, make):
    alice = make.principal("alice")
    make.stream(
        alice,
        kinds="toolsListChanged, resourceSubscriptions",
        uri_count=12,
        client_name="desk",
        client_version="1.2",
        address="203.0.113.7",
        delivered=31,
        last_delivery_at=timezone.now(),
    )
    make.stream(make.principal("bob"), node=make.node("web-2"), state=LiveStream.State.CHECK, uri_count=1)
    make.stream(None, kinds="taskIds, somethingNew", client_name="<b>bold</b>")
    make.stream(alice, state=LiveStream.State.ENDING, client_name="ending-client")
    make.stream(alice, node=make.dead_node(), client_name="dead-client")
    text = admin.text("livestream/")
    for shown in (
        "tools, 12 URIs",
        "desk 1.2",
        "203.0.113.7",
        "web-2:1",
        ">31<",
        "tasks, somethingNew",
        "0\xa0minutes ago",
    ):
        assert shown in text
    assert f'<a href="/admin/mcp_channels/principal/{alice.pk}/change/">alice</a>' in text
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "ending-client" not in text
    assert "dead-client" not in text
    usage = " ".join(text[text.index('class="mcp-usage"') :].split("</p>")[0].split())
    assert "<strong>3</strong> streams" in usage
    assert "<strong>2</strong> principals" in usage
    assert "<strong>2</strong> nodes" in usage


def test_an_empty_list_is_a_list(admin):
    assert "<strong>0</strong> streams" in admin.text("livestream/")


def test_a_stream_has_a_page_to_look_at(admin, make):
    alice = make.principal("alice")
    token = make.token(alice, "desk")
    stream = make.stream(alice, token=token)
    path = f"livestream/{stream.pk}/change/"
    text = admin.text(path)
    assert str(token) in text
    assert 'name="_save"' not in text
    assert "deletelink" not in text


def test_selected_streams_are_disconnected(admin, make, told, django_capture_on_commit_callbacks):
    alice = make.principal("alice")
    streams = [make.stream(alice) for _ in range(3)]
    with django_capture_on_commit_callbacks(execute=True):
        assert admin.act("livestream/", "disconnect_selected", streams[:2]).status_code == 302
    assert "Disconnected 2 streams." in admin.text("livestream/")
    assert listed(admin) == [streams[2].pk]
    ended = LiveStream.objects.filter(state=LiveStream.State.ENDING)
    assert sorted(ended.values_list("pk", "reason")) == [(stream.pk, "revoked") for stream in streams[:2]]
    [message] = told
    assert str(streams[0].pk) in message["orders"]
    assert str(streams[2].pk) not in message["orders"]
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Disconnected."] * 2


def test_all_streams_of_a_filter_are_disconnected_and_no_others(admin, make, told):
    alice, bob = make.principal("alice"), make.principal("bob")
    streams = [make.stream(alice), make.stream(alice), make.stream(bob)]
    data = {"action": "disconnect_selected", "select_across": "1", "_selected_action": [streams[0].pk], "index": 0}
    admin.post(f"livestream/?principal={alice.pk}", data)
    assert listed(admin) == [streams[2].pk]


def test_nobody_adds_changes_or_deletes_a_row(admin, make, told):
    stream = make.stream(make.principal("alice"))
    before = LiveStream.objects.values().get()
    assert admin.get("livestream/add/").status_code == 403
    assert admin.post(f"livestream/{stream.pk}/change/", {"endpoint": "x"}).status_code == 403
    assert admin.post(f"livestream/{stream.pk}/delete/", {"post": "yes"}).status_code == 403
    admin.act("livestream/", "delete_selected", [stream])
    assert LiveStream.objects.values().get() == before
    assert told == []


def test_permissions_decide_who_looks_and_who_disconnects(staff, make, told):
    stream = make.stream(make.principal("alice"))
    viewer = staff("view_livestream")
    assert "disconnect_selected" not in viewer.text("livestream/")
    viewer.act("livestream/", "disconnect_selected", [stream])
    assert listed(viewer) == [stream.pk]
    assert staff("view_principal").get("livestream/").status_code == 403
    helper = staff("view_livestream", "delete_livestream")
    assert "disconnect_selected" in helper.text("livestream/")
    helper.act("livestream/", "disconnect_selected", [stream])
    assert listed(helper) == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"q": "ali"}, [0]),
        ({"q": "robot/"}, [1]),
        ({"q": "2001:db8::"}, [1]),
        ({"q": "web-2"}, [1]),
        ({"q": "open"}, [2]),
        ({"q": "cron"}, [1]),
        ({"endpoint": "open"}, [2]),
        ({"kind": "resourceSubscriptions"}, [1]),
        ({"kind": "toolsListChanged"}, [0, 2]),
        ({"kind": "nonsense"}, [0, 1, 2]),
        ({"node__id__exact": "web-2"}, [1]),
        ({"principal__is_anonymous__exact": "1"}, [2]),
        ({"q": "no one"}, []),
    ],
)
def test_streams_are_found(admin, make, query, found):
    bob = make.principal("bob")
    streams = [
        make.stream(make.principal("alice")),
        make.stream(
            bob,
            node=make.node("web-2"),
            kinds="resourcesListChanged, resourceSubscriptions",
            client_name="robot/7",
            address="2001:db8::1",
            token=make.token(bob, "cron"),
        ),
        make.stream(make.principal("anonymous:::1", is_anonymous=True), endpoint="open"),
    ]
    assert listed(admin, **query) == [streams[index].pk for index in found]


def test_the_list_of_a_principal_says_whose_it_is(admin, make):
    alice = make.principal("alice")
    chosen = admin.get("livestream/", principal=alice.pk).context["cl"].filter_specs[0]
    assert (chosen.title, chosen.lookup_choices) == ("principal", [(str(alice.pk), "alice")])


@pytest.mark.parametrize("query", [{}, {"_facets": "True"}, {"principal": "p0"}, {"q": "web"}])
def test_the_queries_of_the_list_do_not_grow_with_its_rows(admin, make, query):
    def fill(numbers) -> None:
        for number in numbers:
            owner = Principal.objects.first() or make.principal("p0")
            other = make.principal(f"q{number}")
            for principal in (owner, other):
                node = make.node(f"web{number}")
                make.stream(principal, node=node, token=make.token(principal), endpoint=f"e{number % 3}")

    # A filter with one choice is not shown, and not counted.
    fill(range(3))
    if "principal" in query:
        query = {"principal": Principal.objects.get(name="p0").pk}
    admin.get("livestream/", **query)
    counts, rows = [], []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            response = admin.get("livestream/", **query)
        counts.append(len(queries))
        rows.append(response.context["cl"].result_count)
        if len(counts) == 1:
            fill(range(3, 150))
    assert rows[1] >= 50 * rows[0]
    assert counts[0] == counts[1]


def test_the_queries_of_disconnecting_do_not_grow_with_the_streams(admin, make, told):
    alice = make.principal("alice")
    counts = []
    # The first looks up what Django then keeps.
    for number in (1, 1, 50):
        streams = [make.stream(alice) for _ in range(number)]
        with CaptureQueriesContext(connection) as queries:
            admin.act("livestream/", "disconnect_selected", streams)
        counts.append(len(queries))
    assert LiveStream.objects.live().count() == 0
    assert counts[1] == counts[2]
