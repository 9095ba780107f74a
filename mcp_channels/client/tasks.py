"""
Tasks with an owner, who ends them.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """
    A set of tasks; ``close()`` cancels those that are left, and waits until they are over.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """
        Run ``work`` in a task.
        """
        task = asyncio.create_task(work, name=f"mcp_channels.client {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """
        Cancel all, except the task that calls this, and wait for them.
        """
        await ended(*self._tasks)


async def ended(*tasks: "asyncio.Task[Any] | None") -> None:
    """
    Cancel tasks, except the one that calls this, and wait until they are over, whatever they end with.
    """
    current = asyncio.current_task()
    left = [task for task in tasks if task is not None and task is not current]
    for task in left:
        task.cancel()
    if left:
        await asyncio.gather(*left, return_exceptions=True)
