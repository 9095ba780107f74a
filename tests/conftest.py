"""
Fixtures: real services and the example project, each started on free ports and stopped again.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Postgres, Redis
from tests.support.project import Project


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Put the long tests first: of those that run side by side, none is left with one at the end.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """
    A Redis that tests may share; one that stops it starts its own.
    """
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    """
    A Redis for one test.
    """
    directory = tmp_path / "redis"
    directory.mkdir()
    server = Redis(directory)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """
    A PostgreSQL server.
    """
    server = Postgres(tmp_path_factory.mktemp("postgres"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A migrated SQLite database, to be copied.
    """
    directory = tmp_path_factory.mktemp("migrated")
    project = Project(directory)
    project.stop()
    return directory / "db.sqlite3"


@pytest.fixture
def make_project(tmp_path: Path, migrated: Path) -> Iterator[object]:
    """
    A function that makes projects; keyword arguments are environment variables.
    """
    made: list[Project] = []

    def make(**env: str) -> Project:
        directory = tmp_path / f"project{len(made)}"
        directory.mkdir()
        made.append(Project(directory, template=migrated, **env))
        return made[-1]

    yield make
    for project in made:
        project.stop()


@pytest.fixture
def project(make_project, redis: Redis) -> Project:
    """
    The example project on SQLite and Redis.
    """
    return make_project(REDIS_URL=redis.url)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """
    The messages of other kinds than changes that left, in order, in pytest's own process.
    """
    from mcp_channels.publisher import publisher

    messages: list[object] = []
    monkeypatch.setattr(publisher, "tell", messages.extend)
    return messages


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """
    The topics that were published, in order, in pytest's own process.
    """
    from mcp_channels.publisher import publisher

    published: list[object] = []
    monkeypatch.setattr(publisher, "publish", published.extend)
    return published


class Served:
    """
    A running server of the example project, with a principal who may read and write notes.
    """

    def __init__(self, project: Project, kind: str) -> None:
        self.project = project
        self.server = project.serve(kind)
        self.port = self.server.port
        self.token = project.token("alice", user="alice")


@pytest.fixture(scope="session", params=["daphne", "uvicorn"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated: Path, redis: Redis
) -> Iterator[Served]:
    """
    A server that many tests share, once on Daphne and once on uvicorn.
    """
    config = json.dumps({"prefix": f"served-{request.param}"})
    project = Project(
        tmp_path_factory.mktemp(f"served-{request.param}"),
        template=migrated,
        REDIS_URL=redis.url,
        CHANNEL_LAYER_CONFIG=config,
    )
    yield Served(project, request.param)
    project.stop()
