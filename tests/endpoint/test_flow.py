"""
What is known of the connections behind responses: real sockets, without HTTP.
"""

import asyncio
import socket
from contextlib import asynccontextmanager, closing
from functools import partial

import pytest

from mcp_channels.endpoint import sockets
from mcp_channels.endpoint.flow import Flow, HiddenFlow, TransportFlow, flow_of

SCOPE = {"http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}


class Request:
    """
    A request as uvicorn's looks to ``flow_of``.
    """

    def __init__(self, transport):
        self.transport = transport

    async def send(self, message):
        pass


@asynccontextmanager
async def connection():
    """
    A transport, and the client's blocking socket.
    """
    connected = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: connected.set_result(writer), "127.0.0.1", 0)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    await asyncio.to_thread(client.connect, server.sockets[0].getsockname())
    writer = await connected
    try:
        yield writer.transport, client
    finally:
        client.close()
        writer.transport.abort()
        server.close()
        await server.wait_closed()


def pair(*, limited: bool) -> tuple[socket.socket, socket.socket, socket.socket]:
    """
    A listener, an accepted connection, and its client.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    if limited:
        sockets.limit_unsent_at(listener.getsockname()[1])
    client = socket.create_connection(listener.getsockname())
    accepted = listener.accept()[0]
    accepted.settimeout(0)
    return listener, accepted, client


def fill(connection: socket.socket) -> int:
    """
    Write until the socket is full, and return how much that took.
    """
    total = 0
    try:
        while True:
            total += connection.send(bytes(4096))
    except BlockingIOError:
        return total


def test_a_socket_that_is_limited_takes_little_for_a_client_that_does_not_read():
    sizes = []
    for limited in (True, False):
        listener, accepted, client = pair(limited=limited)
        with listener, accepted, client:
            sizes.append(fill(accepted))
    assert sizes[0] < sizes[1] / 4
    assert sizes[0] < 400_000


def test_a_connection_is_found_by_its_client_and_never_taken_for_another():
    async def look():
        listener, accepted, client = pair(limited=False)
        peer = client.getsockname()
        with listener, client:
            with accepted, closing(sockets.find(peer)) as found:
                assert found.getpeername() == peer
                assert found.fileno() != accepted.fileno()
                number = accepted.fileno()
            other = socket.create_connection(listener.getsockname())
            with other, listener.accept()[0] as reused:
                assert number in (other.fileno(), reused.fileno())
                assert sockets.find(peer) is None

    sockets._found_at = float("-inf")
    asyncio.run(look())


async def test_buffers_are_small_while_a_stream_is_open_and_as_they_were_afterwards():
    async with connection() as (transport, client):
        before = transport.get_write_buffer_limits()
        flow = flow_of(SCOPE, Request(transport).send)
        assert isinstance(flow, TransportFlow)
        assert transport.get_write_buffer_limits() == (0, 1)
        assert flow.taken() == 0
        transport.write(b"some")
        assert await asyncio.to_thread(client.recv, 10) == b"some"
        assert flow.taken() == 4
        flow.close()
        assert transport.get_write_buffer_limits() == before
        taken = transport.get_extra_info("socket")
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 0


async def test_a_client_that_takes_nothing_hears_of_it_when_it_is_cut():
    async with connection() as (transport, client):
        flow = flow_of(SCOPE, Request(transport).send)
        transport.write(bytes(2**20))
        assert flow.abort()
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(lambda: [client.recv(65536) for _ in range(1000)])


async def test_a_connection_that_its_server_hides_is_cut_all_the_same():
    sockets._found_at = float("-inf")
    async with connection() as (transport, client):
        flow = HiddenFlow(client.getsockname())
        transport.write(bytes(100))
        assert await asyncio.to_thread(client.recv, 100) == bytes(100)
        assert flow.taken() == 100
        assert flow.abort()
        assert await asyncio.to_thread(client.recv, 100) == b""
        assert not HiddenFlow(("127.0.0.1", 1)).abort()


async def test_nothing_is_known_where_send_is_wrapped_or_the_connection_is_shared():
    async with connection() as (transport, _):
        request = Request(transport)

        async def wrapped(message):
            await request.send(message)

        for scope, send in [
            ({**SCOPE, "http_version": "2"}, request.send),
            (SCOPE, wrapped),
            (SCOPE, partial(wrapped, object())),
            ({}, request.send),
        ]:
            flow = flow_of(scope, send)
            assert type(flow) is Flow
            await flow.wait()
            assert flow.taken() is None
            assert not flow.abort()
        assert transport.get_write_buffer_limits() != (0, 1)
