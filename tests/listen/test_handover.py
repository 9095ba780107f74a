"""
Waiting for streams that are superseded elsewhere.
"""

import asyncio

import pytest

from mcp_channels.listen import handover
from mcp_channels.listen.admission import Displaced
from mcp_channels.listen.handover import Handovers


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(handover, "RECEIPT_TIMEOUT", 0.1)
    monkeypatch.setattr(handover, "SLOW_RECEIPT_TIMEOUT", 0.3)
    monkeypatch.setattr(handover, "HANDOVER_TIMEOUT", 0.5)


async def took(waiting) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.timeout(5):
        await waiting
    return loop.time() - started


async def test_it_ends_with_the_streams(quick):
    handovers = Handovers()
    waiting = handovers.expect([Displaced(1, "a"), Displaced(2, "b")])
    assert set(handovers.keys) == {1, 2}
    handovers.ended(1)
    handovers.received(2)
    task = asyncio.create_task(waiting.wait(is_layer_down=False))
    await asyncio.sleep(0.2)
    assert not task.done()
    handovers.ended(2)
    await asyncio.wait_for(task, 1)
    assert not handovers.keys


async def test_a_holder_that_says_nothing_is_not_waited_for_and_not_again(quick):
    handovers = Handovers()
    assert 0.05 < await took(handovers.expect([Displaced(1, "a")]).wait(is_layer_down=False)) < 0.4
    assert await took(handovers.expect([Displaced(2, "a")]).wait(is_layer_down=False)) < 0.05


async def test_a_holder_that_speaks_again_is_waited_for_again(quick):
    handovers = Handovers()
    await handovers.expect([Displaced(1, "a")]).wait(is_layer_down=False)
    waiting = handovers.expect([Displaced(2, "a")])
    handovers.received(2)
    task = asyncio.create_task(waiting.wait(is_layer_down=False))
    await asyncio.sleep(0.1)
    assert not task.done()
    handovers.ended(2)
    await asyncio.wait_for(task, 1)


async def test_without_the_layer_a_holder_has_longer(quick):
    handovers = Handovers()
    assert await took(handovers.expect([Displaced(1, "a")]).wait(is_layer_down=True)) > 0.25


async def test_a_holder_that_never_ends_it_is_not_waited_for_without_end(quick):
    handovers = Handovers()
    waiting = handovers.expect([Displaced(1, "a")])
    handovers.received(1)
    assert 0.4 < await took(waiting.wait(is_layer_down=False)) < 2


async def test_two_may_wait_for_one_and_one_that_is_cancelled_leaves_the_other(quick):
    handovers = Handovers()
    first, second = handovers.expect([Displaced(1, "a")]), handovers.expect([Displaced(1, "a")])
    handovers.received(1)
    tasks = [asyncio.create_task(item.wait(is_layer_down=False)) for item in (first, second)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    assert set(handovers.keys) == {1}
    handovers.ended(1)
    await asyncio.wait_for(tasks[1], 1)
    assert not handovers.keys


async def test_word_of_streams_that_nobody_waits_for_is_nothing(quick):
    handovers = Handovers()
    handovers.received(7)
    handovers.ended(7)
    assert not handovers.keys
