"""
The same on every channel layer, and across processes.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from urllib.parse import quote

import pytest

from tests.support.http import call, listening
from tests.support.project import LAYERS

PAGES = "tests.support.pages:application"
# Not ? and #: an RFC 6570 variable doesn't take them unencoded.
ALPHABET = "aä€😀'\"\\<>&[]{}|^`"


@pytest.fixture(params=LAYERS)
def layered(request, make_project, redis):
    """
    A project on each of the layers.
    """
    env = {"MCP_CHANNELS_JSON": json.dumps({"MAX_LISTENS_PER_PRINCIPAL": 1000}), **LAYERS[request.param]}
    if LAYERS[request.param]:
        env |= {"REDIS_URL": redis.url, "CHANNEL_LAYER_CONFIG": json.dumps({"prefix": f"layers-{request.param}"})}
    return make_project(**env)


def touch(server, *uris):
    return call(server.port, "tools/call", {"name": "touch", "arguments": {"uris": list(uris)}})


async def test_a_uri_of_any_text_works_as_a_topic(layered):
    server = layered.serve("uvicorn", application=PAGES)
    uris = [
        "page:" + quote("\r\n" + ALPHABET, safe="") + "x" * 1500,
        "page:" + (ALPHABET * 200)[:1995],
        "page:" + "y" * 1994 + "1",
        "page:" + "y" * 1994 + "2",
        "page:a b",
        "page:%0A",
    ]
    assert len(uris[1]) == len(uris[2]) == 2000
    async with AsyncExitStack() as stack:
        streams = {
            uri: await stack.enter_async_context(listening(server.port, {"resourceSubscriptions": [uri]}))
            for uri in uris
        }
        assert all(stream.honoured == {"resourceSubscriptions": [uri]} for uri, stream in streams.items())
        for uri in uris:
            await touch(server, uri)
            assert (await streams[uri].message())["params"]["uri"] == uri
        for stream in streams.values():
            await stream.silence(0.05)


async def test_a_burst_of_topics_loses_none(layered):
    """
    More at once than the layers' own queues hold by default.
    """
    server = layered.serve("uvicorn", application=PAGES)
    uris = [f"page:{number}" for number in range(1000)]
    async with listening(server.port, {"resourceSubscriptions": uris}) as stream:
        await touch(server, *uris)
        heard = [(await stream.message())["params"]["uri"] for _ in uris]
        assert sorted(heard) == sorted(uris)


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_layer_with_tiny_queues_loses_nothing_in_silence(make_project, redis, kind):
    """
    Queues of three messages, four publishing processes, and a server that is busy with something else.
    """
    config = json.dumps({"prefix": f"tiny-{kind}", "capacity": 3})
    project = make_project(REDIS_URL=redis.url, CHANNEL_LAYER_CONFIG=config, **LAYERS["core"])
    server = project.serve(kind, application=PAGES)
    uris = [f"page:{number}" for number in range(200)]
    async with listening(server.port, {"resourceSubscriptions": uris}) as stream:
        publish = "import time\nfor uri in uris:\n  notify.notify_resource_updated(uri)\n  time.sleep(0.003)"
        workers = [project.new_worker() for _ in range(4)]
        for worker in workers:
            await asyncio.to_thread(worker.run, "pass")
        work = [asyncio.to_thread(worker.run, publish, uris=uris[number::4]) for number, worker in enumerate(workers)]
        busy = asyncio.create_task(call(server.port, "tools/call", {"name": "hog", "arguments": {"seconds": 1}}))
        await asyncio.gather(*work)
        await busy
        missing = set(uris)
        async with asyncio.timeout(20):
            while missing:
                missing.discard((await stream.message(timeout=15))["params"]["uri"])


async def test_many_streams_join_and_leave_and_join_again(layered):
    server = layered.serve("uvicorn", application=PAGES)
    for _ in range(3):
        async with AsyncExitStack() as stack:
            streams = await asyncio.gather(
                *(
                    stack.enter_async_context(
                        listening(server.port, {"resourceSubscriptions": ["page:all", f"page:{number}"]})
                    )
                    for number in range(30)
                )
            )
            await touch(server, "page:all")
            for stream in streams:
                assert (await stream.message())["params"]["uri"] == "page:all"


@pytest.mark.parametrize("layer", ["pubsub", "core"])
async def test_a_save_reaches_streams_of_every_process(make_project, redis, layer):
    config = json.dumps({"prefix": f"processes-{layer}"})
    project = make_project(REDIS_URL=redis.url, CHANNEL_LAYER_CONFIG=config, **LAYERS[layer])
    servers = [project.serve("uvicorn"), project.serve("daphne")]
    token, pk = project.token(), project.note()
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                listening(server.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=token)
            )
            for server in servers
        ]
        for _ in range(3):
            project.save(pk)
            for stream in streams:
                assert (await stream.message())["params"]["uri"] == f"note://{pk}"


@pytest.mark.parametrize("layer", ["pubsub", "core"])
async def test_a_transaction_of_many_saves_is_one_notice_for_each_topic(make_project, redis, layer):
    config = json.dumps({"prefix": f"transaction-{layer}"})
    project = make_project(REDIS_URL=redis.url, CHANNEL_LAYER_CONFIG=config, **LAYERS[layer])
    server = project.serve("uvicorn")
    token = project.token()
    pks = [project.note() for _ in range(30)]
    asked = {"resourcesListChanged": True, "resourceSubscriptions": [f"note://{pk}" for pk in pks]}
    async with listening(server.port, asked, token=token) as stream:
        project.worker.run(
            """
from django.db import transaction
with transaction.atomic():
    for _ in range(1000):
        Note.objects.get(pk=pks[0]).save()
    for pk in pks:
        Note.objects.get(pk=pk).save()
    Note.objects.create(title="new")
    Note.objects.create(title="new")
""",
            pks=pks,
        )
        messages = [await stream.message() for _ in range(31)]
        assert sorted(m["params"].get("uri", "list") for m in messages) == sorted(
            ["list", *(f"note://{pk}" for pk in pks)]
        )
        await stream.silence(0.3)


async def test_publishers_of_many_threads_lose_nothing(make_project, redis):
    """
    And leave neither noise on stderr nor connections behind.
    """
    import redis as client

    project = make_project(REDIS_URL=redis.url, CHANNEL_LAYER_CONFIG='{"prefix": "threads"}')
    server = project.serve("uvicorn", application=PAGES)
    uris = [f"page:{number}" for number in range(100)]
    async with listening(server.port, {"resourceSubscriptions": uris}) as stream:
        connections = len(client.Redis(port=redis.port).client_list())
        worker = project.new_worker()
        worker.run(
            """
import threading
def publish(uris):
    for uri in uris:
        notify.notify_resource_updated(uri)
threads = [threading.Thread(target=publish, args=[uris[n::5]]) for n in range(5)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
            flush=False,
            uris=uris,
        )
        # Ended at once: what it published must have left by its own care.
        assert await asyncio.to_thread(worker.stop) == 0
        heard = [(await stream.message())["params"]["uri"] for _ in uris]
        assert sorted(heard) == sorted(uris)
        await asyncio.sleep(0.2)
        assert len(client.Redis(port=redis.port).client_list()) <= connections
    log = (project.directory / "worker.log").read_text()
    assert "closed" not in log
    assert "never retrieved" not in log
    assert "Traceback" not in log


@pytest.mark.parametrize("how", ["exits", "child"])
async def test_a_process_that_ends_at_once_is_heard_wherever_the_layer_is_named(make_project, redis, how):
    """
    By a host's name, which takes a thread to look up; and from a child of multiprocessing, which runs no atexit.
    """
    url = redis.url.replace("127.0.0.1", "localhost")
    project = make_project(REDIS_URL=url, CHANNEL_LAYER_CONFIG=json.dumps({"prefix": f"ends-{how}"}))
    server = project.serve("uvicorn", application=PAGES)
    run = {
        "exits": "notify_resource_updated(f'page:{number}')",
        "child": "import multiprocessing as m\n"
        "child = m.get_context('fork').Process(target=notify_resource_updated, args=[f'page:{number}'])\n"
        "child.start(); child.join()",
    }[how]
    uris = [f"page:{number}" for number in range(5)]
    async with listening(server.port, {"resourceSubscriptions": uris}) as stream:
        for number, uri in enumerate(uris):
            code = f"from mcp_channels import notify_resource_updated\nnumber = {number}\n{run}"
            await asyncio.to_thread(project.manage, "shell", "-v0", "-c", code)
            assert (await stream.message(timeout=3))["params"]["uri"] == uri
