"""
Finding out what a server speaks, and being let in.
"""

import asyncio
import subprocess
import sys

import pytest

from mcp_channels.client import ConnectionLostError, ListenClient, ListenRefusedError, Resynchronised
from tests.client.conftest import QUICK
from tests.client.scripted import Request, Scripted
from tests.support.processes import ROOT, free_port

TOOLS = {"toolsListChanged": True}


@pytest.mark.parametrize(
    ("status", "body"),
    [(401, None), (403, "<p>no</p>"), (500, None), (502, "<p>bad gateway</p>"), (503, None), (429, None)],
)
async def test_a_refusal_tells_nothing_of_the_era(legacy_client, legacy_server, status, body):
    answers = [lambda request: request.answer(status, body), lambda request: request.answer(404, "Not Found")]
    legacy_server.answers["server/discover"] = lambda request: answers.pop(0)(request)
    with pytest.raises(ListenRefusedError, match=f"HTTP {status}") as caught:
        await legacy_client.connect()
    assert (caught.value.status, caught.value.is_passing) == (status, status not in (401, 403))
    assert legacy_server.log == ["server/discover"]
    # The next call asks again.
    await legacy_client.connect()
    assert legacy_client.protocol_version == "2025-11-25"


@pytest.mark.parametrize(
    ("status", "body"), [(400, ""), (400, "<p>what?</p>"), (404, None), (405, None), (200, {"jsonrpc": "2.0", "id": 1})]
)
async def test_a_server_that_does_not_know_the_question_is_a_legacy_one(legacy_client, legacy_server, status, body):
    legacy_server.answers["server/discover"] = lambda request: request.answer(status, body)
    await legacy_client.connect()
    assert legacy_client.protocol_version == "2025-11-25"


@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_server_that_does_not_answer_is_not_a_legacy_one(legacy_client, legacy_server, monkeypatch, is_cut):
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.2)
    legacy_server.answers["server/discover"] = lambda request: request.abort() if is_cut else None
    with pytest.raises(ConnectionLostError):
        await legacy_client.connect()
    assert "initialize" not in legacy_server.log


async def test_no_server_is_an_error_of_the_call_and_of_nothing_else(no_task_is_left):
    async with ListenClient(f"http://127.0.0.1:{free_port()}/mcp") as client:
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                await client.list_tools()
            with pytest.raises(ConnectionLostError):
                await client.listen(TOOLS)
            with pytest.raises(ConnectionLostError):
                await client.watch("a:1")
        assert client.protocol_version is None
    with pytest.raises(RuntimeError, match="closed"):
        await client.connect()
    with pytest.raises(ValueError, match="no http"):
        ListenClient("ftp://127.0.0.1/mcp")


def guarded(server: Scripted, valid: set[str]) -> None:
    """
    Let the server answer 401 to every other token.
    """
    route = server._route

    def check(request: Request) -> None:
        if request.headers.get("authorization") in {f"Bearer {token}" for token in valid}:
            route(request)
        else:
            request.answer(401, None, WWW_Authenticate="Bearer")

    server._route = check


async def test_a_token_is_asked_for_with_every_request_and_renewed_once(no_task_is_left, server):
    valid = {"token-1"}
    guarded(server, valid)
    asked: list[bool] = []
    current = "token-1"

    async def token(refused: bool) -> str:
        nonlocal current
        asked.append(refused)
        if refused:
            current = f"token-{len(valid) + 1}"
        return current

    async with ListenClient(server.url, token=token, relisten=QUICK) as client:
        subscription = await client.listen(TOOLS)
        request = await server.listening()
        request.acknowledge()
        assert set(asked) == {False}
        # It expires, and the stream drops.
        valid.clear()
        valid.add("token-2")
        asked.clear()
        current = "token-expired"
        valid.add("token-3")
        request.abort()
        request = await server.listening()
        request.acknowledge()
        assert asked == [False, True]
        while not isinstance(await asyncio.wait_for(anext(subscription), 5), Resynchronised):
            pass
        # A second refusal stands.
        valid.clear()
        asked.clear()
        request.abort()
        await asyncio.wait_for(subscription.wait_closed(), 5)
        assert isinstance(subscription.error, ListenRefusedError)
        assert subscription.error.status == 401
        assert asked[:2] == [False, True]
    assert "token" not in repr(client._auth)


async def test_a_wrong_token_is_refused_without_a_second_try(no_task_is_left, server):
    guarded(server, {"right"})
    async with ListenClient(server.url, token="wrong") as client:
        with pytest.raises(ListenRefusedError, match="HTTP 401"):
            await client.listen(TOOLS)
    assert len(server.requests) == 1
    with pytest.raises(ValueError, match="token and auth"):
        ListenClient(server.url, token="a", auth=client._auth)


async def test_credentials_are_not_sent_to_another_host(no_task_is_left, server):
    async with Scripted() as other:
        server.answers["subscriptions/listen"] = lambda request: request.answer(307, None, Location=other.url)
        async with ListenClient(server.url, token="secret") as client:
            subscription = await client.listen(TOOLS)
            await asyncio.wait_for(subscription.wait_closed(), 5)
            assert "not followed" in subscription.reason
        assert other.requests == []


def test_the_client_needs_no_django_and_nothing_of_the_server_side():
    code = (
        "import sys; sys.modules['django'] = sys.modules['channels'] = None; import mcp_channels.client;"
        "sys.exit(any(n.startswith('mcp_channels.') and not n.startswith('mcp_channels.client') for n in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
