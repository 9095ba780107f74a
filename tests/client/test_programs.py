"""
The programs of the documentation, run against a server: what they print is what they promise.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.client.official import PythonServer
from tests.client.scripted import Scripted
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "topics" / "client.md"


@pytest.fixture(scope="module")
def python() -> Iterator[PythonServer]:
    server = PythonServer()
    yield server
    server.stop()


def program(name: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """
    The function of a program, with what the program prints in its list ``printed``.
    """
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [block] = [block for block in blocks if f"def {name}(" in block]
    printed: list[str] = []
    space: dict[str, Any] = {"__name__": name, "print": lambda *words: printed.append(" ".join(map(str, words)))}
    exec(compile(block, f"{PAGE.name}:{name}", "exec"), space)
    function = space[name]
    function.printed = printed
    return function


async def shown(function: Any, *lines: str) -> None:
    """
    Return once it has printed these lines, in any order, and forget what it printed.
    """
    async with asyncio.timeout(10):
        while not set(lines) <= set(function.printed):
            await asyncio.sleep(0.01)
    function.printed.clear()


@asynccontextmanager
async def running(function: Any, *arguments: Any, **options: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(function(*arguments, **options))
    try:
        yield
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_program_that_watches_one_resource(python, no_task_is_left):
    watch_one = program("watch_one")
    url, uri = f"http://127.0.0.1:{python.port}/mcp", python.uris[0]
    async with running(watch_one, url, None, uri):
        await shown(watch_one, str(python.versions[uri]))
        for _ in range(2):
            await asyncio.to_thread(python.change, uri)
            await shown(watch_one, str(python.versions[uri]))


async def test_the_program_that_mirrors_a_list(python, no_task_is_left):
    mirror = program("mirror")
    async with running(mirror, f"http://127.0.0.1:{python.port}/mcp", None):
        await shown(mirror, "['note://1', 'note://2']")
        await asyncio.to_thread(python.change, "resources")
        await shown(mirror, "['note://1', 'note://2', 'note://3']")


async def test_the_program_that_reacts_to_many(python, no_task_is_left):
    react = program("react")
    uris = python.uris[:2]
    async with running(react, f"http://127.0.0.1:{python.port}/mcp", None, uris, workers=2):
        await shown(react, *(f"{uri} {python.versions[uri]}" for uri in uris))
        for uri in uris:
            await asyncio.to_thread(python.change, uri)
        await shown(react, *(f"{uri} {python.versions[uri]}" for uri in uris))


async def test_the_program_for_servers_of_either_era(python, legacy_server: Scripted, no_task_is_left):
    either_era = program("either_era")
    uri = python.uris[0]
    updated = f"Notification(method='notifications/resources/updated', params={{'uri': '{uri}'}})"
    async with running(either_era, legacy_server.url, None, uri):
        stream = await legacy_server.stream()
        while not legacy_server.said("resources/subscribe"):
            await asyncio.sleep(0.01)
        stream.send({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}})
        await shown(either_era, updated)
    assert legacy_server.said("resources/unsubscribe") == [uri]
    async with running(either_era, f"http://127.0.0.1:{python.port}/mcp", None, uri):
        granted = {"toolsListChanged": True, "resourceSubscriptions": [uri]}
        await shown(either_era, f"Acknowledged(honoured={granted})")
