"""
Each rule of a listen stream on the wire, over raw HTTP.
"""

import asyncio
import base64
import json
from urllib.parse import quote

import pytest

from tests.spec_requirements import requirement
from tests.support.http import (
    META,
    SUBSCRIPTION_ID,
    call,
    listen,
    listen_body,
    listen_headers,
    listening,
    request,
)


def tool(served, tool_name, **arguments):
    return call(served.port, "tools/call", {"name": tool_name, "arguments": arguments}, token=served.token)


@requirement("http:accel-buffering")
async def test_the_head_keeps_proxies_from_buffering(served):
    async with listen(served.port, {"toolsListChanged": True}, token=served.token) as response:
        assert response.header("content-type") == "text/event-stream"
        assert response.header("cache-control") == "no-cache, no-transform"
        assert response.header("x-accel-buffering") == "no"
        for name in ("content-length", "content-encoding", "connection", "keep-alive"):
            assert response.header(name) is None


async def test_a_stream_is_not_compressed(served):
    async with listening(
        served.port, {"toolsListChanged": True}, token=served.token, accept_encoding="gzip, br"
    ) as stream:
        assert stream.header("content-encoding") is None


@requirement("listen:ack-first")
@pytest.mark.parametrize("id_", ["1", 1, 2**53 - 1, 1795996885223, 2**70, 0, -1, "ü", "a\u2028b", ""])
async def test_every_message_carries_the_id_in_its_json_type(served, id_):
    async with listening(served.port, {"toolsListChanged": True}, token=served.token, id=id_) as stream:
        served.project.worker.run("notify.notify_tools_changed()")
        message = await stream.message()
        assert message["params"] == {"_meta": {SUBSCRIPTION_ID: id_}}
        assert type(message["params"]["_meta"][SUBSCRIPTION_ID]) is type(id_)
        assert stream.raw.isascii()


async def test_two_streams_of_one_id_live_side_by_side(served):
    asked = {"toolsListChanged": True}
    async with listening(served.port, asked, token=served.token) as one:
        async with listening(served.port, asked, token=served.token) as other:
            served.project.worker.run("notify.notify_tools_changed()")
            assert (await one.message())["method"] == (await other.message())["method"]


async def test_only_what_is_honoured_is_acknowledged(served):
    pk = served.project.note()
    asked = {
        "toolsListChanged": True,
        "promptsListChanged": False,
        "resourcesListChanged": None,
        "resourceSubscriptions": [f"note://{pk}", "note://999999", f"note://{pk}", f"note://0{pk}", "file:///a"],
        "fromTheFuture": [1],
    }
    async with listening(served.port, asked, token=served.token) as stream:
        assert stream.honoured == {"toolsListChanged": True, "resourceSubscriptions": [f"note://{pk}"]}


@pytest.mark.parametrize(
    "asked",
    [{}, {"resourceSubscriptions": []}, {"resourceSubscriptions": ["note://999999"]}, {"other": True}],
)
async def test_an_empty_filter_is_acknowledged_and_stays_open(served, asked):
    async with listening(served.port, asked, token=served.token) as stream:
        assert stream.honoured == {}
        served.project.worker.run("notify.notify_tools_changed()")
        await stream.silence(0.3)


async def test_tasks_of_others_are_dropped_silently(served):
    capabilities = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities}
    body = listen_body({"taskIds": ["a", "b"], "toolsListChanged": True}, meta=meta)
    async with request(served.port, headers=listen_headers(), body=body, token=served.token) as response:
        acknowledgment = await response.message()
        assert acknowledgment["params"]["notifications"] == {"toolsListChanged": True}


async def test_a_kind_that_the_server_does_not_offer_is_not_honoured(served):
    asked = {"promptsListChanged": True, "toolsListChanged": True}
    async with listening(served.port, asked, path="/open/mcp") as stream:
        assert stream.honoured == {"toolsListChanged": True}
        served.project.worker.run("notify.notify_prompts_changed()")
        await stream.silence(0.3)


@requirement("resources:capability")
async def test_capabilities_say_what_is_honoured(served):
    full = (await call(served.port, "server/discover", token=served.token))["result"]["capabilities"]
    assert full["tools"] == full["prompts"] == {"listChanged": True}
    assert full["resources"] == {"listChanged": True, "subscribe": True}
    without_prompts = (await call(served.port, "server/discover", path="/open/mcp"))["result"]["capabilities"]
    assert "prompts" not in without_prompts
    assert (await call(served.port, "prompts/list", path="/open/mcp"))["error"]["code"] == -32601


@requirement("listen:only-requested", "http:related")
async def test_a_save_reaches_exactly_those_who_asked(served):
    first, second = served.project.note(), served.project.note()
    token = served.token
    async with (
        listening(served.port, {"resourceSubscriptions": [f"note://{first}"]}, token=token) as one,
        listening(served.port, {"resourceSubscriptions": [f"note://{second}"]}, token=token) as two,
        listening(served.port, {"toolsListChanged": True}, token=token) as three,
    ):
        served.project.save(first)
        message = await one.message()
        assert message["method"] == "notifications/resources/updated"
        assert message["params"]["uri"] == f"note://{first}"
        for stream in (one, two, three):
            await stream.silence(0.3)


async def test_a_uri_matches_exactly(served):
    pk = served.project.note()
    async with listening(served.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=served.token) as stream:
        for uri in (f"note://{pk}/", f"note://{pk}/a", f"NOTE://{pk}", f"note://{pk}0", "note://"):
            served.project.worker.run("notify.notify_resource_updated(uri)", uri=uri)
        await stream.silence(0.3)


@requirement("listen:nothing-before-ack")
async def test_nothing_comes_before_the_acknowledgment(served):
    pk = served.project.note()
    worker = served.project.new_worker()
    saving = asyncio.create_task(
        asyncio.to_thread(
            worker.run,
            "import time\nfor _ in range(200):\n  Note.objects.get(pk=pk).save()\n  time.sleep(0.002)",
            pk=pk,
        )
    )
    opened = 0
    while not saving.done():
        # listening() checks that the first message is the acknowledgment.
        async with listening(served.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=served.token) as stream:
            opened += 1
            heard = asyncio.create_task(stream.message())
            await asyncio.wait([heard, saving], return_when=asyncio.FIRST_COMPLETED)
            if heard.done():
                assert heard.result()["params"]["uri"] == f"note://{pk}"
            else:
                heard.cancel()
    await saving
    worker.stop()
    assert opened > 3


async def test_nothing_published_after_the_acknowledgment_is_missed(served):
    """
    1,000 rounds in all, half on each server: open, publish at once from another process, receive.
    """
    worker = served.project.new_worker()
    worker.run(
        "notes = [Note(pk=pk, title='x', shared=True) for pk in range(1, 501)]\n"
        "changed = {'update_fields': ['title', 'shared'], 'unique_fields': ['pk']}\n"
        "Note.objects.bulk_create(notes, update_conflicts=True, **changed)"
    )
    for number in range(500):
        # A new topic each time, so that each round joins a group.
        asked = {"toolsListChanged": True} if number % 5 == 0 else {"resourceSubscriptions": [f"note://{number + 1}"]}
        async with listening(served.port, asked, token=served.token) as stream:
            if number % 5 == 0:
                await asyncio.to_thread(worker.run, "notify.notify_tools_changed()")
            else:
                await asyncio.to_thread(worker.run, "notify.notify_resource_updated(uri)", uri=f"note://{number + 1}")
            await stream.message(timeout=5)
    worker.stop()


@requirement("resources:list-changed", "resources:list")
async def test_a_new_row_changes_the_list(served):
    async with listening(served.port, {"resourcesListChanged": True}, token=served.token) as stream:
        created = await tool(served, "create_note", title="a new one")
        assert (await stream.message())["method"] == "notifications/resources/list_changed"
        uri = created["result"]["structuredContent"]["uri"]
        assert uri in await _all_uris(served)
        await tool(served, "delete_note", id=created["result"]["structuredContent"]["id"])
        assert (await stream.message())["method"] == "notifications/resources/list_changed"
        assert uri not in await _all_uris(served)


async def _all_uris(served) -> list[str]:
    uris, cursor = [], None
    while True:
        result = (await call(served.port, "resources/list", {"cursor": cursor} if cursor else {}, token=served.token))[
            "result"
        ]
        uris += [item["uri"] for item in result["resources"]]
        cursor = result.get("nextCursor")
        if cursor is None:
            return uris


@requirement("resources:list-stable")
async def test_the_list_is_the_same_on_every_connection(served):
    assert await _all_uris(served) == await _all_uris(served)


async def test_a_tool_that_comes_or_goes_is_told(served):
    async with listening(served.port, {"toolsListChanged": True}, token=served.token) as stream:
        await tool(served, "add_tool", name="extra")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        assert "extra" in [item["name"] for item in (await _result(served, "tools/list"))["tools"]]
        await tool(served, "remove_tool", name="extra")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        assert "extra" not in [item["name"] for item in (await _result(served, "tools/list"))["tools"]]


async def _result(served, method, params=None):
    return (await call(served.port, method, params, token=served.token))["result"]


@requirement("resources:access-controls", "resources:permissions")
async def test_what_may_not_be_read_may_not_be_watched(served):
    """
    Forbidden and absent look the same, in the acknowledgment and in what is read.
    """
    hidden = served.project.worker.run(
        "user, _ = User.objects.get_or_create(username='bob')\n"
        "result = Note.objects.create(title='private', owner=user).pk"
    )
    shared = served.project.note()
    asked = {"resourceSubscriptions": [f"note://{hidden}", f"note://{shared}", "note://999999"]}
    async with listening(served.port, asked, token=served.token) as stream:
        assert stream.honoured == {"resourceSubscriptions": [f"note://{shared}"]}
        served.project.save(hidden)
        await stream.silence(0.3)
    for pk in (hidden, 999999):
        answer = await call(served.port, "resources/read", {"uri": f"note://{pk}"}, token=served.token)
        assert answer["error"]["code"] == -32602
        assert answer["error"]["message"].replace(str(pk), "PK") == "Unknown resource: note://PK"


@requirement("resources:access-controls")
async def test_without_the_scope_nothing_may_be_read_or_watched(served):
    pk = served.project.note()
    token = served.project.token("no scopes", scopes=())
    async with listening(served.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=token) as stream:
        assert stream.honoured == {}
    answer = await call(served.port, "resources/read", {"uri": f"note://{pk}"}, token=token)
    assert answer["error"]["code"] == -32602
    assert (await call(served.port, "resources/list", token=token))["result"]["resources"] == []
    assert (await call(served.port, "resources/templates/list", token=token))["result"]["resourceTemplates"] == []
    answer = await call(served.port, "tools/call", {"name": "update_note", "arguments": {"id": pk}}, token=token)
    assert answer["result"]["isError"]
    assert "notes:write" in answer["result"]["content"][0]["text"]


@requirement("resources:not-found", "resources:no-empty-contents")
async def test_an_absent_resource_is_not_found(served):
    answer = await call(served.port, "resources/read", {"uri": "note://999999"}, token=served.token)
    assert answer["error"]["code"] == -32602
    assert answer["error"]["data"] == {"uri": "note://999999"}


ODD_URIS = [
    "note://\x00",
    "note://%00",
    "note://\ud800",
    "note://" + "9" * 30,
    "note://-1",
    "note://" + "9" * 5000,
    "note://1.0",
    "note://١",
    "note://1 ",
    "note:// 1",
    "note://true",
    "note://",
    "note://{pk}",
    "note://../1",
    "note://%31",
    "\u2028",
    "",
    "x" * 100_000,
]


@requirement("resources:validate-uris")
async def test_odd_uris_name_nothing_and_break_nothing(served):
    served.project.worker.run("Note.objects.update_or_create(pk=1, defaults={'title': 'x', 'shared': True})")
    asked = {"resourceSubscriptions": [*ODD_URIS, "note://1"]}
    async with listening(served.port, asked, token=served.token) as stream:
        assert stream.honoured == {"resourceSubscriptions": ["note://1"]}
    for uri in ODD_URIS[3:-3]:
        name = "=?base64?" + base64.b64encode(uri.encode()).decode() + "?="
        body = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": uri, "_meta": META}}
        headers = {**listen_headers(mcp_method="resources/read"), "Mcp-Name": name}
        async with request(
            served.port, headers=headers, body=json.dumps(body).encode(), token=served.token
        ) as response:
            assert (await response.json())["error"]["code"] == -32602, uri
    assert "Traceback" not in served.server.read_log()


async def test_a_body_in_pieces_is_one_request(served):
    body = listen_body({"toolsListChanged": True})
    async with request(
        served.port, headers=listen_headers(), body=[body[:20], body[20:50], body[50:]], token=served.token
    ) as response:
        assert (await response.message())["method"] == "notifications/subscriptions/acknowledged"
        served.project.worker.run("notify.notify_tools_changed()")
        assert (await response.message())["method"] == "notifications/tools/list_changed"


@requirement("http:close-cancels", "cancel:disconnect", "cancel:stop-processing", "cancel:free-resources")
@requirement("cancel:no-response", "http:stop-work", "http:no-further-messages", "cancel:log-reasons")
async def test_a_client_that_leaves_ends_its_stream_at_once(served):
    await asyncio.sleep(0.5)  # the streams of earlier tests are over by then
    before = served.server.read_log().count("client_closed")
    async with listening(served.port, {"toolsListChanged": True}, token=served.token):
        await asyncio.sleep(0.2)
        assert served.server.read_log().count("client_closed") == before
    async with asyncio.timeout(2):
        while served.server.read_log().count("client_closed") == before:
            await asyncio.sleep(0.02)
    assert served.server.read_log().count("client_closed") == before + 1


async def test_each_end_and_each_refusal_leaves_one_line_without_secrets(served):
    await asyncio.sleep(0.5)
    before = served.server.read_log()
    async with listening(served.port, {"toolsListChanged": True}, token=served.token):
        pass
    async with listen(served.port, {"toolsListChanged": True}, token="mcp_a_secret_that_is_wrong") as response:
        assert response.status == 401
    async with listen(served.port, {"toolsListChanged": True}, origin="https://evil.test") as response:
        assert response.status == 403
    await asyncio.sleep(0.5)
    written = served.server.read_log()[len(before) :]
    assert written.count("A stream of endpoint notes ended: client_closed") == 1
    assert written.count("was refused: 401") == 1
    assert written.count("was refused: 403") == 1
    assert served.token not in written
    assert "secret" not in written


@requirement("http:no-requests", "cancel:nothing-else")
async def test_a_stream_carries_notifications_alone(served):
    pk = served.project.note()
    asked = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": [f"note://{pk}"],
    }
    async with listening(served.port, asked, token=served.token) as stream:
        served.project.worker.run(
            "notify.notify_tools_changed(); notify.notify_prompts_changed(); notify.notify_resources_changed()\n"
            "Note.objects.get(pk=pk).save()",
            pk=pk,
        )
        messages = [await stream.message() for _ in range(4)]
        assert all("id" not in message and message["method"].startswith("notifications/") for message in messages)
        assert not any(message["method"] == "notifications/cancelled" for message in messages)
        assert len({message["method"] for message in messages}) == 4


@pytest.mark.parametrize("text", ["ü" * 600, "'\"\\<>&", "a\nb\rc\td", "\U0001f600", "a/b?c#d%20e"])
async def test_any_text_works_as_part_of_a_topic(served, text):
    """
    The URI is made of 2,000 characters at most, percent-encoded as the template writes it; the notification matches it
    byte for byte. The layer's group is a hash.
    """
    uri = "test://" + quote(text, safe="")[:1990]
    async with listening(
        served.port, {"resourceSubscriptions": [uri, "test://" + "n" * 1993]}, token=served.token
    ) as stream:
        assert stream.honoured == {}
