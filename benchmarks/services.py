"""
What a benchmark of the whole project stands on: a Redis, the example project, and a PostgreSQL if asked for.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.processes import Postgres, Redis
from tests.support.project import LAYERS, Project


@contextmanager
def services(layer: str, *, postgres: bool) -> Iterator[tuple[Project, Redis]]:
    """
    The project on a layer of this name, and its Redis; all is stopped and gone afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, ExitStack() as stack:
        directory = Path(name)
        (directory / "postgres").mkdir()
        redis = Redis(directory)
        stack.callback(redis.stop)
        env = {"REDIS_URL": redis.url, "PYTHONWARNINGS": "ignore", "MCP_CHANNELS_JSON": "", **LAYERS[layer]}
        if postgres:
            server = Postgres(directory / "postgres")
            stack.callback(server.stop)
            env["DATABASE_URL"] = server.create("benchmark")
        project = Project(directory, **env)
        stack.callback(project.stop)
        yield project, redis
