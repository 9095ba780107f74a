"""
The official conformance suite: installed from npm into the repository's ``.cache``, run, and its report read.
"""

import fcntl
import json
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.processes import ROOT

PACKAGE: Final = "@modelcontextprotocol/conformance"

VERSION: Final = "0.2.0-alpha.12"
"""The version of the suite."""

SPEC_VERSION: Final = "2026-07-28"
"""The protocol version whose scenarios are run."""

NODE_VERSION: Final = "24"
"""The node that is installed where the machine has none that is new enough."""

OLDEST_NODE: Final = 22
"""The suite imports ``fs.globSync``, which came with this major version."""

CACHE: Final = ROOT / ".cache" / "conformance"
INSTALL_TIMEOUT: Final = 600
RUN_TIMEOUT: Final = 300

SCENARIO_TIMEOUT: Final = 30_000
"""In milliseconds, as the suite takes it."""

_MACHINES: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
_SAVED: Final = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


class SuiteError(Exception):
    """
    The suite can't be installed, or doesn't run.
    """


@dataclass(frozen=True, slots=True)
class Report:
    """
    What a run found.
    """

    scenarios: Mapping[str, Sequence[Mapping[str, Any]]]
    """The checks of each scenario that ran to its end."""

    returncode: int
    output: str
    """What the suite printed."""

    def count(self, status: str) -> int:
        """
        How many checks have this status.
        """
        return sum(check["status"] == status for checks in self.scenarios.values() for check in checks)

    def complaints(self) -> list[str]:
        """
        The checks that neither succeeded nor merely inform: failures, unmet recommendations, and what was skipped.
        """
        return [
            f"{scenario}: {check['status']} {check['id']}: {check.get('errorMessage') or check.get('description')}"
            for scenario, checks in self.scenarios.items()
            for check in checks
            if check["status"] not in ("SUCCESS", "INFO")
        ]


class Suite:
    """
    The installed suite. Making one installs what isn't there yet.

    Raises:
        SuiteError: a tool is missing, or an installation failed.
    """

    def __init__(self) -> None:
        directory = CACHE / f"suite-{VERSION}"
        program = Path("node_modules") / PACKAGE / "dist" / "index.js"
        with _only_one_installs():
            self._node = _find_node() or _install_node()
            if not (directory / program).is_file():
                _install(f"{PACKAGE}@{VERSION}", directory, is_good=lambda made: (made / program).is_file())
        self._program = directory / program

    def scenarios(self) -> set[str]:
        """
        The names of the server scenarios that a run consists of.
        """
        listed = self._call("list", "--server", "--spec-version", SPEC_VERSION)
        if listed.returncode:
            raise SuiteError(f"The suite doesn't list its scenarios:\n{listed.stdout}{listed.stderr}")
        return set(re.findall(r"^  - (\S+)", listed.stdout, re.MULTILINE))

    def run(self, url: str, directory: Path) -> Report:
        """
        Run all server scenarios against ``url``. The suite's own report stays in ``directory``.
        """
        done = self._call(
            *("server", "--url", url),
            *("--suite", "all", "--spec-version", SPEC_VERSION),
            *("-o", str(directory), "--timeout", str(SCENARIO_TIMEOUT)),
        )
        return Report(_read(directory), done.returncode, done.stdout + done.stderr)

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._node), str(self._program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT, check=False)


def _read(directory: Path) -> dict[str, list[dict[str, Any]]]:
    found = ((_SAVED.fullmatch(file.parent.name), file) for file in sorted(directory.glob("*/checks.json")))
    return {match["scenario"]: json.loads(file.read_text()) for match, file in found if match is not None}


def _find_node() -> Path | None:
    """
    A node that can run the suite: the machine's, or one installed before.
    """
    on_path = shutil.which("node")
    if on_path is not None and _is_new_enough(Path(on_path)):
        return Path(on_path)
    return next(_nodes(_node_directory()), None)


def _install_node() -> Path:
    _npm()  # without it, neither package needs to be tried
    # The first package is a script that fetches the second, and not every machine runs the scripts of packages.
    machine = platform.machine().lower()
    packages = ("node", f"node-{platform.system().lower()}-{_MACHINES.get(machine, machine)}")
    failures = []
    for package in packages:
        try:
            _install(f"{package}@{NODE_VERSION}", _node_directory(), is_good=lambda made: any(_nodes(made)))
        except SuiteError as error:
            failures.append(str(error))
            continue
        node = _find_node()
        if node is not None:
            return node
        failures.append(f"{package}@{NODE_VERSION} doesn't run where it was installed")
    raise SuiteError("\n".join([f"The conformance suite needs node {OLDEST_NODE} or newer:", *failures]))


def _node_directory() -> Path:
    return CACHE / f"node-{NODE_VERSION}"


def _nodes(directory: Path) -> Iterator[Path]:
    return filter(_is_new_enough, sorted(directory.glob("node_modules/*/bin/node")))


def _is_new_enough(node: Path) -> bool:
    try:
        printed = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return int(printed.strip().removeprefix("v").partition(".")[0]) >= OLDEST_NODE


def _install(package: str, directory: Path, *, is_good: Callable[[Path], bool]) -> None:
    """
    Install ``package`` from npm into ``directory``, which is there afterwards whole or not at all.
    """
    npm = _npm()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="installing-") as temporary:
        made = Path(temporary) / directory.name
        made.mkdir()
        # Without a package.json of its own, npm would install into a directory above.
        (made / "package.json").write_text('{"private": true}\n')
        command = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", package]
        try:
            done = subprocess.run(
                command, cwd=made, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise SuiteError(f"npm took more than {INSTALL_TIMEOUT} seconds to install {package}") from None
        if done.returncode or not is_good(made):
            raise SuiteError(f"npm could not install {package}:\n{done.stdout}{done.stderr}")
        shutil.rmtree(directory, ignore_errors=True)
        made.rename(directory)


def _npm() -> str:
    """
    The program that installs.
    """
    needed = {"node": "runs npm", "npm": f"installs {PACKAGE} and the node that runs it"}
    for tool, purpose in needed.items():
        if shutil.which(tool) is None:
            raise SuiteError(f"The conformance suite can't be installed: {tool}, which {purpose}, is not on the PATH.")
    return str(shutil.which("npm"))


@contextmanager
def _only_one_installs() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
