"""
Clients that lose their server together: when they are back.

    python -m benchmarks.herd --clients 1000 --server uvicorn

Each is a ``ListenClient`` with its defaults, on a connection of its own. The server is told to stop, and starts again
at the same port; ``--kill`` kills it instead. What is shown is how many asked to listen again in each quarter of a
second, and how long it took until each was acknowledged again.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from mcp_channels.client import Closed, ListenClient, Reconnecting, Resynchronised
from tests.support.processes import SERVERS, Redis
from tests.support.project import Project

QUARTER = 0.25


class Member:
    """
    One client of the herd.
    """

    def __init__(self, url: str, token: str) -> None:
        self._client = ListenClient(url, token=token)
        self.lost_at: float | None = None
        self.due_at: float | None = None
        self.back_at: float | None = None
        self.attempts = 0

    async def open(self, stack: AsyncExitStack) -> None:
        """
        Listen, and return once it is acknowledged.
        """
        client = await stack.enter_async_context(self._client)
        self._subscription = await stack.enter_async_context(client.listen({"tools_list_changed": True}))

    async def watch(self) -> None:
        """
        Return once the stream was lost and is back.
        """
        async for event in self._subscription:
            if isinstance(event, Closed) and self.lost_at is None:
                self.lost_at = time.monotonic()
            elif isinstance(event, Reconnecting):
                self.attempts += 1
                if self.due_at is None:
                    self.due_at = time.monotonic() + event.delay
            elif isinstance(event, Resynchronised):
                self.back_at = time.monotonic()
                return


async def measure(project: Project, options: argparse.Namespace) -> list[Member]:
    """
    Open the clients, restart the server, and wait until all are back.
    """
    server = project.serve(options.server)
    token = project.token("herd", max_streams=100_000)
    herd = [Member(f"{server.url}/mcp", token) for _ in range(options.clients)]
    async with AsyncExitStack() as stack:
        for start in range(0, len(herd), 50):
            await asyncio.gather(*(member.open(stack) for member in herd[start : start + 50]))
        watching = asyncio.gather(*(member.watch() for member in herd))
        (server.process.kill if options.kill else server.terminate)()
        await asyncio.to_thread(server.process.wait)
        await asyncio.to_thread(project.serve, options.server, port=server.port)
        async with asyncio.timeout(options.timeout):
            await watching
    return herd


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Returns 0; 1 if more than 60 % of the clients asked again within one second.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.herd", description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--server", choices=SERVERS, default="uvicorn")
    parser.add_argument("--kill", action="store_true", help="kill the server, which then says goodbye to nobody")
    parser.add_argument("--timeout", type=float, default=120, help="seconds until all must be back")
    options = parser.parse_args(arguments)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        redis = Redis(Path(directory))
        project = Project(Path(directory), REDIS_URL=redis.url, PYTHONWARNINGS="ignore")
        try:
            herd = asyncio.run(measure(project, options))
        finally:
            project.stop()
            redis.stop()
    lost = min(member.lost_at or 0 for member in herd)
    asked = [(member.due_at or 0) - lost for member in herd]
    back = [(member.back_at or 0) - lost for member in herd]
    quarters = Counter(int(seconds / QUARTER) for seconds in asked)
    print("first asked again, each quarter of a second:", *(quarters[number] for number in range(max(quarters) + 1)))
    print(f"requests: {sum(member.attempts for member in herd)}; all back after {max(back):.1f} s")
    densest = max(sum(start <= other < start + 1 for other in asked) for start in asked)
    print(f"at most {densest} of {len(herd)} in any second")
    return int(densest > 0.6 * len(herd))


if __name__ == "__main__":
    sys.exit(main())
