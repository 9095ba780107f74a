"""
The wheel, installed in an environment of its own, and the README followed to the letter.
"""

import os
import re
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.processes import ROOT, free_port, wait_for_port

README = (ROOT / "README.md").read_text()
STEP = re.compile(r"<!-- step: (?P<kind>\w+) ?(?P<path>\S*) -->\n```(?:bash|python)\n(?P<text>.*?)```", re.DOTALL)
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """
    The wheel, built from this tree.
    """
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """
    An environment with nothing but the wheel, what it needs, and what the README adds.
    """
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"mcp-channels[redis] @ file://{wheel}", "daphne"], check=True)
    return directory


def test_the_wheel_holds_what_runs_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "mcp_channels/migrations/0001_initial.py" in names
    assert "mcp_channels/py.typed" in names
    for path in (ROOT / "mcp_channels").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names
    assert {name.split("/")[0] for name in names} == {"mcp_channels", f"{wheel.name.split('-py3')[0]}.dist-info"}


class Follower:
    """
    Does what the README says, in a directory outside the tree.
    """

    def __init__(self, environment: Path, directory: Path, redis_url: str) -> None:
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DJANGO")},
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }
        self.env.pop("PYTHONPATH", None)
        self.directory = directory
        self.redis_url = redis_url
        self.output = ""
        self.port = free_port()

    def shell(self, text: str) -> None:
        for line in text.strip().splitlines():
            if line.startswith("pip install"):
                continue  # the environment has the wheel in its place
            if line.startswith("cd "):
                self.directory /= line.removeprefix("cd ")
                continue
            done = subprocess.run(
                line, shell=True, cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            self.output = done.stdout

    def append(self, path: str, text: str) -> None:
        with (self.directory / path).open("a") as file:
            file.write("\n" + text.replace("redis://127.0.0.1:6379/0", self.redis_url))

    def write(self, path: str, text: str) -> None:
        (self.directory / path).write_text(text)

    def start(self, text: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec {text.strip()}"],
            cwd=self.directory,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def test_the_readme_leads_a_new_project_to_its_first_notification(environment, redis, tmp_path):
    follower = Follower(environment, tmp_path, redis.url)
    steps = [match.groupdict() for match in STEP.finditer(README)]
    kinds = [step["kind"] for step in steps]
    assert kinds == ["shell", "append", "write", "write", "write", "shell", "serve", "listen", "append", "change"]
    for step in steps[:6]:
        if step["kind"] == "shell":
            follower.shell(step["text"])
        else:
            getattr(follower, step["kind"])(step["path"], step["text"])
    token = follower.output.splitlines()[-1]
    assert token.startswith("mcp_")
    # The second part's settings, so that the change may come from another process.
    follower.append(steps[8]["path"], steps[8]["text"])
    server = follower.start(steps[6]["text"].replace("8000", str(follower.port)))
    listener = None
    try:
        wait_for_port(follower.port, server)
        listener = follower.start(steps[7]["text"].replace("8000", str(follower.port)).replace("TOKEN", token))
        assert listener.stdout.readline().startswith("listening: ")
        follower.shell(steps[9]["text"])
        assert listener.stdout.readline() == "notifications/resources/updated product://1\n"
        assert "notifications/resources/updated product://1\n" in README
    finally:
        for process in (listener, server):
            if process is not None:
                process.send_signal(signal.SIGTERM)
                process.wait(10)
                process.stdout.close()


def test_the_environment_is_not_this_tree(environment, tmp_path):
    code = "import mcp_channels; print(mcp_channels.__file__)"
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(environment))
