import asyncio
from collections.abc import AsyncIterator

import pytest

from mcp_channels.client import ListenClient, Relisten
from tests.client.scripted import Scripted

QUICK = Relisten(first_delay=0.02, longest_delay=0.1)


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    async with Scripted() as server:
        yield server


@pytest.fixture
async def legacy_server() -> AsyncIterator[Scripted]:
    async with Scripted(legacy=True) as server:
        yield server


@pytest.fixture
async def no_task_is_left() -> AsyncIterator[None]:
    """
    Closing a client ends every task of it.
    """
    yield
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith("mcp_channels.client")]
    assert left == []


@pytest.fixture
async def client(no_task_is_left, server: Scripted) -> AsyncIterator[ListenClient]:
    async with ListenClient(server.url, relisten=QUICK) as client:
        yield client


@pytest.fixture
async def legacy_client(no_task_is_left, legacy_server: Scripted) -> AsyncIterator[ListenClient]:
    async with ListenClient(legacy_server.url, relisten=QUICK) as client:
        yield client
