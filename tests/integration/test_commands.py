"""
The command line, run as a user runs it.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests.spec_requirements import requirement
from tests.support import forked
from tests.support.http import listening
from tests.support.processes import ROOT, free_port


class Listening:
    """
    A running ``mcp_listen --json``.
    """

    def __init__(self, project, *arguments: str) -> None:
        command = ["manage.py", "mcp_listen", *arguments, "--json"]
        self.process = forked.Process(command, env=project.env, stdout=forked.PIPE, stderr=forked.PIPE)

    async def event(self) -> dict:
        async with asyncio.timeout(20):
            return json.loads(await asyncio.to_thread(self.process.stdout.readline))

    async def exit(self) -> int:
        async with asyncio.timeout(20):
            return await asyncio.to_thread(self.process.wait)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def test_a_token_is_alone_on_the_last_line_and_works_for_its_principal(project):
    done = project.manage("mcp_token", "robot", "--scope", "notes:read", "--scope", "b", "--max-streams", "2")
    value = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"mcp_[\w-]{40,}", value)
    stored = project.worker.run(
        "p = models.Principal.objects.get(name='robot')\n"
        "result = [sorted(s.name for s in p.scopes.all()), p.max_streams, p.user_id, p.tokens.get().expires_at]"
    )
    assert stored == [["b", "notes:read"], 2, None, None]


def test_a_principal_is_updated_and_keeps_what_is_not_said(project):
    project.worker.run("User.objects.create(username='alice')")
    project.manage("mcp_token", "alice", "--scope", "a", "--max-streams", "2")
    project.manage("mcp_token", "alice", "--user", "alice", "--ttl", "60")
    stored = project.worker.run(
        "p = models.Principal.objects.get(name='alice')\n"
        "result = [[s.name for s in p.scopes.all()], p.max_streams, p.user.username, p.tokens.count(),"
        " p.tokens.filter(expires_at=None).count()]"
    )
    assert stored == [["a"], 2, "alice", 2, 1]


def test_revoking_ends_all_tokens_of_a_principal(project):
    project.manage("mcp_token", "alice")
    project.manage("mcp_token", "alice")
    assert "Revoked 2 tokens" in project.manage("mcp_token", "alice", "--revoke").stdout
    assert project.worker.run("result = models.AccessToken.objects.filter(revoked_at=None).count()") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["mcp_token", "alice", "--user", "nobody"],
        ["mcp_token", "nobody", "--revoke"],
        ["mcp_token", "alice", "--ttl", "0"],
        ["mcp_token", "alice", "--max-streams", "many"],
        ["mcp_notify", "resource"],
        ["mcp_notify", "tools", "note://1"],
        ["mcp_notify", "everything"],
    ],
)
def test_bad_arguments_are_an_error_and_no_trace(project, arguments):
    done = project.manage(*arguments, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "rror" in done.stderr


async def test_mcp_notify_reaches_streams(project):
    server = project.serve("uvicorn")
    token, pk = project.token(), project.note()
    asked = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    async with listening(server.port, {**asked, "resourceSubscriptions": [f"note://{pk}"]}, token=token) as stream:
        for arguments in (["tools"], ["prompts"], ["resources"], ["resource", f"note://{pk}"]):
            await asyncio.to_thread(project.manage, "mcp_notify", *arguments)
        methods = [(await stream.message())["method"].removeprefix("notifications/") for _ in range(4)]
        assert methods == ["tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated"]


async def test_mcp_listen_tells_what_happens_and_stops_after_a_count(project):
    server = project.serve("daphne")
    token, pk = project.token(), project.note()
    uri = f"note://{pk}"
    options = ("--token", token, "--tools", "--resource", uri, "--resource", "note://9999", "--count", "2")
    with Listening(project, f"{server.url}/mcp", *options) as client:
        assert await client.event() == {
            "event": "acknowledged",
            "honoured": {"toolsListChanged": True, "resourceSubscriptions": [uri]},
        }
        project.save(pk)
        event = await client.event()
        assert (event["event"], event["method"]) == ("notification", "notifications/resources/updated")
        assert event["params"]["uri"] == uri
        project.worker.run("notify.notify_tools_changed()")
        assert (await client.event())["method"] == "notifications/tools/list_changed"
        assert await client.exit() == 0


async def test_mcp_listen_comes_back_after_a_restart(project):
    server = project.serve("uvicorn")
    token = project.token()
    with Listening(project, f"{server.url}/mcp", "--token", token, "--tools") as client:
        assert (await client.event())["event"] == "acknowledged"
        server.terminate()
        assert await client.event() == {"event": "closed", "reason": "shutdown", "graceful": True}
        event = await client.event()
        assert event["event"] == "reconnecting"
        assert event["delay"] > 0
        await asyncio.to_thread(server.process.wait)
        project.serve("uvicorn", port=server.port)
        while (event := await client.event())["event"] != "resynchronised":
            assert event["event"] in ("closed", "reconnecting")
        assert event["honoured"] == {"toolsListChanged": True}
        project.worker.run("notify.notify_tools_changed()")
        assert (await client.event())["method"] == "notifications/tools/list_changed"


async def test_mcp_listen_tells_a_cut_from_a_graceful_end(project):
    server = project.serve("uvicorn")
    with Listening(project, f"{server.url}/mcp", "--token", project.token(), "--tools") as client:
        assert (await client.event())["event"] == "acknowledged"
        server.process.send_signal(signal.SIGKILL)
        event = await client.event()
        assert (event["event"], event["graceful"]) == ("closed", False)
        assert (await client.event())["event"] == "reconnecting"


def test_mcp_listen_stops_after_a_timeout_and_after_a_refusal(project):
    server = project.serve("uvicorn")
    token = project.token()
    done = project.manage("mcp_listen", f"{server.url}/mcp", "--token", token, "--tools", "--timeout", "1", check=False)
    assert done.returncode == 3
    done = project.manage("mcp_listen", f"{server.url}/mcp", "--token", "wrong", "--tools", check=False)
    assert done.returncode == 1
    assert "401" in done.stderr
    assert "The token is not valid." in done.stderr
    assert "Traceback" not in done.stderr
    assert "wrong" not in done.stderr
    done = project.manage("mcp_listen", f"{server.url}/nothing", "--tools", check=False)
    assert done.returncode == 1
    assert "404" in done.stderr


def _plain_environment(directory) -> dict[str, str]:
    """
    The environment without what pytest put there.
    """
    env = {**os.environ, "TMPDIR": str(directory)}
    del env["DJANGO_SETTINGS_MODULE"]
    return env


@requirement("http:localhost")
def test_the_demo_runs_once_on_the_loopback_interface_and_leaves_nothing(tmp_path):
    port = free_port()
    env = _plain_environment(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "manage.py", "demo", "--once", "--port", str(port)],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("listening"):
                addresses = {address[4][0] for address in socket.getaddrinfo(socket.gethostname(), port)}
                for address in addresses - {"127.0.0.1", "127.0.1.1", "::1"}:
                    with pytest.raises(OSError):
                        socket.create_connection((address, port), timeout=1)
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
    output = "".join(lines)
    assert f"http://127.0.0.1:{port}/mcp" in output
    assert f"http://127.0.0.1:{port}/admin/" in output
    assert "password" in output
    assert output.count("notifications/resources/updated note://1") == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM"])
def test_the_demo_ends_when_told_to_and_leaves_nothing(tmp_path, how):
    port = free_port()
    env = _plain_environment(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "manage.py", "demo", "--port", str(port)],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        for line in process.stdout:
            if line.startswith("heard"):
                if how == "ctrl-c":
                    os.killpg(process.pid, signal.SIGINT)
                else:
                    process.terminate()
                break
        rest = process.stdout.read()
        process.wait(20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
