"""
How streams end: by the server's word, by limits, and by clients that stall.
"""

import asyncio
import contextlib
import json
import signal
import time
from contextlib import AsyncExitStack

import pytest

from tests.spec_requirements import requirement
from tests.support.http import SUBSCRIPTION_ID, call, listen, listen_body, listen_headers, listening, request
from tests.support.processes import SERVERS, UVLOOP


def check_closing(messages: list[dict], reason: str, id_: object = 1) -> None:
    """
    The frames with which the server ends a stream, and nothing after them.
    """
    cancelled, result = messages[-2:]
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"] == {"requestId": id_, "reason": reason, "_meta": {SUBSCRIPTION_ID: id_}}
    assert result["id"] == id_
    assert type(result["id"]) is type(id_)
    assert result["result"]["resultType"] == "complete"
    assert result["result"]["_meta"][SUBSCRIPTION_ID] == id_
    assert result["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"]
    assert not any(message["method"] == "notifications/cancelled" for message in messages[:-2])


@requirement("cancel:teardown", "cancel:references-listen", "cancel:in-progress")
@requirement("listen:teardown-result", "listen:graceful-closure", "http:response-ends")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("kind", [*SERVERS, UVLOOP])
async def test_a_server_that_is_told_to_stop_closes_its_streams(project, kind, number):
    server = project.serve(kind)
    token = project.token()
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(server.port, {"toolsListChanged": True}, token=token, id=id_))
            for id_ in ("a", 7, 8, 9, "b", "c", 1, 2, 3, 4)
        ]
        started = time.monotonic()
        server.process.send_signal(number)
        for stream, id_ in zip(streams, ("a", 7, 8, 9, "b", "c", 1, 2, 3, 4), strict=True):
            check_closing(await stream.ending(), "shutdown", id_)
        assert time.monotonic() - started < 2
    async with asyncio.timeout(5):
        await asyncio.to_thread(server.process.wait)
    assert time.monotonic() - started < 5
    log = server.read_log()
    assert "Traceback" not in log
    # Daphne's word for an application that it had to kill.
    assert "took too long" not in log
    assert project.worker.run("result = models.LiveStream.objects.count() + models.Node.objects.count()") == 0


async def test_a_reload_closes_the_streams_of_the_old_process(project, tmp_path):
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "changed.py").write_text("")
    server = project.serve("uvicorn", arguments=["--reload", "--reload-dir", str(watched)], plain=True)
    token = project.token()
    async with listening(server.port, {"toolsListChanged": True}, token=token) as stream:
        started = time.monotonic()
        (watched / "changed.py").write_text("CHANGED = True\n")
        check_closing(await stream.ending(), "shutdown")
        # uvicorn looks four times a second whether a file has changed.
        assert time.monotonic() - started < 3
    status = 0
    async with asyncio.timeout(20):
        # The old process refuses what it still accepts, or drops it as it exits.
        while status != 200:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                async with listen(server.port, {"toolsListChanged": True}, token=token) as response:
                    status = response.status
                    assert status in (200, 503)
    log = server.read_log()
    assert log.count("Started server process") == 2
    assert "Traceback" not in log


WORKS = {"uvicorn": "Application startup complete", "granian": "Started worker-", "hypercorn": "Running on"}
"""What each worker writes into the log once it serves."""


@pytest.mark.parametrize("kind", WORKS)
async def test_servers_with_several_workers_close_their_streams(project, kind):
    server = project.serve(kind, arguments=["--workers", "2"], plain=True)
    token = project.token()
    async with asyncio.timeout(60):
        # Their parent listens before them; one that is told to stop while it starts does so when it has started.
        while server.read_log().count(WORKS[kind]) < 2:
            await asyncio.sleep(0.05)
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(server.port, {"toolsListChanged": True}, token=token))
            for _ in range(8)
        ]
        started = time.monotonic()
        server.terminate()
        for stream in streams:
            check_closing(await stream.ending(), "shutdown")
        assert time.monotonic() - started < 2
    async with asyncio.timeout(8):
        await asyncio.to_thread(server.process.wait)


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_listen_that_is_under_way_when_the_server_is_told_to_stop_does_not_hold_it(project, kind):
    server = project.serve(kind)
    token = project.token()
    await call(server.port, "tools/list", token=token)
    body = listen_body({"toolsListChanged": True})
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    headers = {
        **listen_headers(),
        "Authorization": f"Bearer {token}",
        "Content-Length": str(len(body)),
        "Host": "localhost",
    }
    head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    writer.write(head.encode() + body[:-20])
    await writer.drain()
    await asyncio.sleep(0.5)
    server.terminate()
    await asyncio.sleep(0.2)
    writer.write(body[-20:])
    try:
        async with asyncio.timeout(8):
            await asyncio.to_thread(server.process.wait)
    finally:
        writer.close()


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_client_that_takes_nothing_does_not_hold_up_the_end(project, kind):
    server = project.serve(kind)
    token = project.token("stalled")
    uris = [f"note://{project.note()}" for _ in range(100)]
    async with listening(server.port, {"resourceSubscriptions": uris}, token=token) as stalled:
        stalled._reader._transport.pause_reading()
        publish = "for _ in range(20):\n  for uri in uris:\n    notify.notify_resource_updated(uri)"
        for _ in range(40):
            await asyncio.to_thread(project.worker.run, publish, uris=uris)
        server.terminate()
        async with asyncio.timeout(8):
            await asyncio.to_thread(server.process.wait)


async def _session(port: int, token: str) -> str:
    """
    Open a session of an older revision, and return its id.
    """
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    async with request(port, headers=headers, body=json.dumps(message).encode(), token=token) as response:
        assert response.status == 200
        return response.header("mcp-session-id")


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_stream_of_an_old_session_ends_with_its_token_and_with_the_server(project, kind):
    server = project.serve(kind)
    headers = {"Accept": "text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
    brief, lasting = project.token("brief", ttl=3), project.token("lasting")
    session = await _session(server.port, brief)
    other = await _session(server.port, lasting)
    async with (
        request(server.port, method="GET", headers={**headers, "Mcp-Session-Id": session}, token=brief) as one,
        request(server.port, method="GET", headers={**headers, "Mcp-Session-Id": other}, token=lasting) as two,
    ):
        assert (one.status, two.status) == (200, 200)
        async with asyncio.timeout(6):
            with contextlib.suppress(asyncio.IncompleteReadError):
                while await one.chunk():
                    pass
        async with request(
            server.port, method="GET", headers={**headers, "Mcp-Session-Id": other}, token=project.token("thief")
        ) as stolen:
            assert stolen.status == 404
        server.terminate()
        async with asyncio.timeout(8):
            await asyncio.to_thread(server.process.wait)


@pytest.fixture
def limited(make_project, redis):
    """
    A function that serves the example project with settings of its own.
    """

    def serve(kind, **settings):
        project = make_project(REDIS_URL=redis.url, MCP_CHANNELS_JSON=json.dumps(settings))
        return project, project.serve(kind)

    return serve


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_quiet_stream_is_kept_alive_by_comments(limited, kind):
    project, server = limited(kind, KEEP_ALIVE_INTERVAL=0.2)
    async with listening(server.port, {"toolsListChanged": True}, token=project.token()) as stream:
        assert [await stream.frame(), await stream.frame()] == [b":", b":"]
        assert stream.raw.endswith(b":\r\n\r\n")


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_stream_ends_with_its_lifetime(limited, kind):
    project, server = limited(kind, MAX_STREAM_LIFETIME=1)
    async with listening(server.port, {"toolsListChanged": True}, token=project.token()) as stream:
        started = time.monotonic()
        check_closing(await stream.ending(), "max_lifetime")
        assert 0.5 < time.monotonic() - started < 2.5


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_keep_alives_do_not_keep_an_idle_stream_open(limited, kind):
    project, server = limited(kind, LISTEN_IDLE_TIMEOUT=1, KEEP_ALIVE_INTERVAL=0.3)
    async with listening(server.port, {"toolsListChanged": True}, token=project.token()) as stream:
        for _ in range(3):
            await asyncio.sleep(0.6)
            project.worker.run("notify.notify_tools_changed()")
            assert (await stream.message())["method"] == "notifications/tools/list_changed"
        started = time.monotonic()
        check_closing(await stream.ending(), "idle_timeout")
        assert 0.9 < time.monotonic() - started < 2.5


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_stream_never_outlives_its_token(limited, kind):
    project, server = limited(kind)
    token = project.token("brief", ttl=2)
    async with listening(server.port, {"toolsListChanged": True}, token=token) as stream:
        check_closing(await stream.ending(), "token_expired")
    async with listen(server.port, {"toolsListChanged": True}, token=token) as response:
        assert response.status == 401


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_full_process_answers_503_and_ends_nobody(limited, kind):
    project, server = limited(kind, MAX_STREAMS=2)
    token = project.token()
    asked = {"toolsListChanged": True}
    async with listening(server.port, asked, token=token) as one, listening(server.port, asked, token=token) as two:
        async with listen(server.port, asked, token=token, id="third") as response:
            assert response.status == 503
            assert int(response.header("retry-after")) > 0
            body = await response.json()
            assert body["id"] == "third"
            assert body["error"]["code"] == -32603
        project.worker.run("notify.notify_tools_changed()")
        for stream in (one, two):
            assert (await stream.message())["method"] == "notifications/tools/list_changed"
    await asyncio.sleep(0.3)
    async with listening(server.port, asked, token=token):
        pass


async def test_keep_alives_and_notifications_never_mix(limited):
    project, server = limited("uvicorn", KEEP_ALIVE_INTERVAL=0.001, MAX_STREAM_LIFETIME=4)
    token, worker = project.token(), project.new_worker()
    worker.run("result = None")
    async with listening(server.port, {"toolsListChanged": True}, token=token) as stream:
        publishing = asyncio.create_task(
            asyncio.to_thread(
                worker.run,
                "import time\nfor _ in range(1000):\n  notify.notify_tools_changed()\n  time.sleep(0.001)",
            )
        )
        messages = await stream.ending()
        await publishing
        check_closing(messages, "max_lifetime")
        assert len(messages) > 100
        assert stream.comments > 100
        assert all(m["method"] == "notifications/tools/list_changed" for m in messages[:-2])


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_client_that_stops_reading_costs_little_and_loses_nothing(limited, kind):
    """
    500 topics of 2 kB, saved over and over: what waits for the client is bounded by its filter.
    """
    project, server = limited(kind, SEND_TIMEOUT=60)
    token = project.token("slow")
    pks = [project.note(title=f"note {number}") for number in range(50)]
    uris = [f"note://{pk}" for pk in pks]
    async with (
        listening(server.port, {"resourceSubscriptions": uris}, token=token) as slow,
        listening(server.port, {"resourceSubscriptions": uris[:1]}, token=token) as other,
    ):
        slow._reader._transport.pause_reading()
        before = server.rss()
        publish = "for _ in range(200):\n  for uri in uris:\n    notify.notify_resource_updated(uri)"
        for _ in range(20):
            await asyncio.to_thread(project.worker.run, publish, uris=uris)
        assert server.rss() - before < 20 * 1024 * 1024
        while True:
            try:
                await other.message(timeout=0.5)
            except TimeoutError:
                break
        project.worker.run("notify.notify_resource_updated(uri)", uri=uris[0])
        assert (await other.message(timeout=1))["params"]["uri"] == uris[0]
        slow._reader._transport.resume_reading()
        seen = set()
        while len(seen) < len(uris):
            seen.add((await slow.message())["params"]["uri"])
