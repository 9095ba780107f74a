"""
The live streams in a terminal.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_channels.management.commands.mcp_streams import HEADINGS
from mcp_channels.models import LiveStream, Node, Principal
from mcp_channels.publisher import publisher

pytestmark = pytest.mark.django_db(transaction=True)

OPENED = datetime(2026, 7, 28, 12, 30, tzinfo=UTC)


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("mcp_streams", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def stream(name: str | None = "alice", **fields) -> LiveStream:
    principal = None if name is None else Principal.objects.get_or_create(name=name)[0]
    node = Node.objects.get_or_create(id="n", defaults={"host": "web", "pid": 7})[0]
    fields = {"endpoint": "notes", "node": node, "opened_at": OPENED, **fields}
    return LiveStream.objects.create(principal=principal, **fields)


def test_json_is_one_list_of_objects_with_every_column():
    row = stream(
        kinds="toolsListChanged, resourceSubscriptions",
        uri_count=2,
        client_name="desk",
        client_version="1.2",
        address="203.0.113.7",
        last_delivery_at=OPENED + timedelta(seconds=1),
        delivered=31,
    )
    other = stream(None)
    assert json.loads(run("--json")) == [
        {
            "id": row.pk,
            "principal": "alice",
            "endpoint": "notes",
            "kinds": ["toolsListChanged", "resourceSubscriptions"],
            "uri_count": 2,
            "client_name": "desk",
            "client_version": "1.2",
            "address": "203.0.113.7",
            "node": "web:7",
            "opened_at": "2026-07-28T12:30:00+00:00",
            "last_delivery_at": "2026-07-28T12:30:01+00:00",
            "delivered": 31,
        },
        {
            "id": other.pk,
            "principal": None,
            "endpoint": "notes",
            "kinds": [],
            "uri_count": 0,
            "client_name": "",
            "client_version": "",
            "address": "",
            "node": "web:7",
            "opened_at": "2026-07-28T12:30:00+00:00",
            "last_delivery_at": None,
            "delivered": 0,
        },
    ]


def test_the_table_is_aligned_and_tells_a_terminal_nothing_else():
    first = stream(client_name="desk\x1b[2J\nx", client_version="1.2", delivered=31)
    second = stream("a-longer-name", uri_count=240)
    lines = run().splitlines()
    assert len(lines) == 3
    assert re.split(" {2,}", lines[0]) == list(HEADINGS)
    column = lines[0].index("endpoint")
    assert [line[column:].split()[0] for line in lines] == ["endpoint", "notes", "notes"]
    assert lines[1].startswith(f"{first.pk} ")
    assert lines[2].split()[:2] == [str(second.pk), "a-longer-name"]
    assert "desk\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}x 1.2" in lines[1]
    assert "2026-07-28 12:30:00+00:00" in lines[1]


def test_only_live_streams_are_shown():
    stream(state=LiveStream.State.ENDING)
    stream(node=Node.objects.create(id="dead", host="dead", pid=1, seen_at=timezone.now() - timedelta(hours=1)))
    assert run() == "No stream is open.\n"
    assert json.loads(run("--json")) == []


def test_disconnecting_ends_one_and_has_sent_the_order(told):
    first, second = stream(), stream()
    assert run("--disconnect", str(first.pk)) == f"Disconnected stream {first.pk}.\n"
    assert [row["id"] for row in json.loads(run("--json"))] == [second.pk]
    assert LiveStream.objects.values_list("state", "reason").get(pk=first.pk) == ("ending", "revoked")
    assert [json.loads(message["orders"]) for message in told] == [[[first.pk, "revoked"]]]


def test_disconnecting_as_json_is_a_list_too(told):
    row = stream()
    assert [item["id"] for item in json.loads(run("--disconnect", str(row.pk), "--json"))] == [row.pk]
    assert LiveStream.objects.live().count() == 0


def test_a_layer_that_is_down_is_mentioned_and_the_order_stands(monkeypatch, told):
    monkeypatch.setattr(publisher, "flush", lambda timeout: False)
    row = stream()
    assert "The channel layer did not take the order" in run("--disconnect", str(row.pk))
    assert LiveStream.objects.live().count() == 0


@pytest.mark.parametrize("key", ["4711", "0", "-1", "9" * 30])
def test_an_id_that_is_not_there_is_an_error(told, key):
    stream()
    with pytest.raises(CommandError, match=f"There is no live stream {key}."):
        run(f"--disconnect={key}")
    assert told == []
    assert LiveStream.objects.live().count() == 1


def test_a_stream_that_ends_already_is_not_there():
    row = stream(state=LiveStream.State.ENDING)
    with pytest.raises(CommandError):
        run("--disconnect", str(row.pk))


def test_an_id_that_is_no_number_is_an_error():
    with pytest.raises(CommandError, match="invalid int value"):
        run("--disconnect", "first")


def test_one_query_whatever_the_number():
    for number in range(20):
        stream(f"p{number}")
    with CaptureQueriesContext(connection) as queries:
        run()
    assert len(queries) == 1


def test_the_command_line_ends_with_an_error_and_no_traceback(project):
    done = project.manage("mcp_streams", "--disconnect", "4711", check=False)
    assert done.returncode == 1
    assert "There is no live stream 4711." in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(project.manage("mcp_streams", "--json").stdout) == []
