"""
Clients that leave in the middle of something.
"""

import asyncio

import pytest

from tests.support.http import call, listen_body, listen_headers
from tests.support.processes import SERVERS

PATIENCE = {"daphne": ["--application-close-timeout", "1"]}
"""Seconds that Daphne waits for an application whose client has left, before it kills it and says so; by default 10."""


@pytest.mark.parametrize("kind", SERVERS)
async def test_clients_that_abort_at_any_moment_leave_nothing_to_kill(project, kind):
    server = project.serve(kind, arguments=PATIENCE.get(kind, []))
    token, pk = project.token(), project.note()
    body = listen_body({"toolsListChanged": True, "resourceSubscriptions": [f"note://{pk}"]})
    headers = {
        **listen_headers(),
        "Authorization": f"Bearer {token}",
        "Content-Length": str(len(body)),
        "Host": f"127.0.0.1:{server.port}",
    }
    head = ("POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())).encode()
    whole = head + b"\r\n" + body

    async def abort(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        # In the head, in the body, with all sent, some moments later, in the response's head, after the acknowledgment.
        writer.write(whole[: (len(head) // 2, len(head) + 30, len(whole))[min(number % 6, 2)]])
        if number % 6 == 3:
            await asyncio.sleep(number / 5000)
        elif number % 6 == 4:
            await reader.read(1)
        elif number % 6 == 5:
            await reader.readuntil(b"acknowledged")
        writer.transport.abort()

    async with asyncio.timeout(30):
        await asyncio.gather(*map(abort, range(60)))
    count = "result = models.LiveStream.objects.count()"
    async with asyncio.timeout(5):
        while project.worker.run(count):
            await asyncio.sleep(0.05)
    if kind == "daphne":
        await asyncio.sleep(1.5)
    assert (await call(server.port, "tools/list", token=token))["result"]["tools"]
    log = server.read_log()
    assert "took too long" not in log
    assert "Traceback" not in log
