"""
Commits, rollbacks and authorisation on SQLite and on a real PostgreSQL.
"""

import asyncio
import json

import pytest

from tests.endpoint.test_streams import ODD_URIS
from tests.support.http import call, listening


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request, make_project, redis):
    """
    A project on each of the databases.
    """
    env = {"REDIS_URL": redis.url, "CHANNEL_LAYER_CONFIG": json.dumps({"prefix": f"stored-{request.param}"})}
    if request.param == "postgres":
        postgres = request.getfixturevalue("postgres")
        env["DATABASE_URL"] = postgres.create(f"test_{abs(hash(request.node.name)) % 10**9}")
    return make_project(**env)


async def test_a_notice_comes_after_its_commit_and_a_read_sees_it(stored):
    server = stored.serve("uvicorn")
    token, pk = stored.token(), stored.note(title="0")
    uri = f"note://{pk}"
    async with listening(server.port, {"resourceSubscriptions": [uri]}, token=token) as stream:
        for number in range(1, 31):
            await asyncio.to_thread(
                stored.worker.run,
                "from django.db import transaction\n"
                "import time\n"
                "with transaction.atomic():\n"
                "  Note.objects.filter(pk=pk).update(title=title)\n"
                "  Note.objects.get(pk=pk).save()\n"
                "  time.sleep(0.02)",
                pk=pk,
                title=str(number),
            )
            assert (await stream.message())["params"]["uri"] == uri
            answer = await call(server.port, "resources/read", {"uri": uri}, token=token)
            assert json.loads(answer["result"]["contents"][0]["text"])["title"] == str(number)
        await stream.silence(0.2)


async def test_a_rollback_tells_nothing(stored):
    server = stored.serve("uvicorn")
    token, pk = stored.token(), stored.note()
    asked = {"resourcesListChanged": True, "resourceSubscriptions": [f"note://{pk}"]}
    async with listening(server.port, asked, token=token) as stream:
        stored.worker.run(
            "from django.db import transaction\n"
            "try:\n"
            "  with transaction.atomic():\n"
            "    Note.objects.get(pk=pk).save()\n"
            "    Note.objects.create(title='x')\n"
            "    raise RuntimeError\n"
            "except RuntimeError: pass",
            pk=pk,
        )
        await stream.silence(0.5)
        stored.save(pk)
        assert (await stream.message())["params"]["uri"] == f"note://{pk}"


async def test_odd_uris_break_no_database(stored):
    server = stored.serve("uvicorn")
    token = stored.token()
    stored.worker.run("Note.objects.update_or_create(pk=1, defaults={'title': 'x', 'shared': True})")
    asked = {"resourceSubscriptions": [*ODD_URIS, "note://1"]}
    async with listening(server.port, asked, token=token) as stream:
        assert stream.honoured == {"resourceSubscriptions": ["note://1"]}
    assert "Traceback" not in server.read_log()


async def test_a_thousand_uris_are_authorised_together(stored):
    server = stored.serve("uvicorn")
    token = stored.token()
    stored.worker.run(
        "bob = User.objects.create(username='bob')\n"
        "Note.objects.bulk_create([Note(pk=n, title='x', shared=n % 2, owner=bob) for n in range(1, 1001)])"
    )
    asked = {"resourceSubscriptions": [f"note://{n}" for n in range(1, 1001)]}
    async with listening(server.port, asked, token=token) as stream:
        assert stream.honoured["resourceSubscriptions"] == [f"note://{n}" for n in range(1, 1001, 2)]


async def test_a_database_that_is_gone_is_503_and_ends_no_stream(make_project, redis, tmp_path):
    from tests.support.processes import Postgres

    directory = tmp_path / "postgres"
    directory.mkdir()
    postgres = Postgres(directory)
    try:
        project = make_project(REDIS_URL=redis.url, DATABASE_URL=postgres.create("gone"))
        server = project.serve("uvicorn")
        token = project.token()
        async with listening(server.port, {"toolsListChanged": True}, token=token) as stream:
            postgres.stop()
            answer = await call(server.port, "tools/list", token=token)
            assert answer["error"] == {"code": -32603, "message": "The database is not available"}
            project.worker.run("notify.notify_tools_changed(immediately=True)")
            assert (await stream.message())["method"] == "notifications/tools/list_changed"
    finally:
        postgres.stop()
