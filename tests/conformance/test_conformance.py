"""
The official MCP conformance suite, run against real servers. A warning or a skipped check is a failure here.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.suite import Suite
from tests.support.processes import Server

pytestmark = pytest.mark.long
SCENARIOS = 40
CHECKS = 152
"""What a server passes that answers ``tools/list`` with JSON; one with an SSE stream is given one check more."""


@pytest.fixture(scope="module")
def suite() -> Suite:
    """
    The suite, installed.
    """
    return Suite()


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        # httptools leaves white space around the values of headers, which h11 strips.
        pytest.param("uvicorn", ("--http", "httptools"), id="uvicorn-httptools"),
        pytest.param("uvicorn", ("--http", "h11"), id="uvicorn-h11"),
        pytest.param("daphne", (), id="daphne"),
    ],
)
def test_every_check_of_the_official_suite_succeeds(suite: Suite, tmp_path: Path, kind: str, arguments: Sequence[str]):
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.conformance.settings", "TMPDIR": str(tmp_path)}
    server = Server(
        kind,
        env=env,
        log=tmp_path / "server.log",
        application="tests.conformance.asgi:application",
        arguments=arguments,
        plain=True,
    )
    try:
        report = suite.run(f"{server.url}/mcp", tmp_path / "report")
    finally:
        server.stop()

    assert report.complaints() == []
    # A scenario that breaks off saves nothing; the suite's output says why.
    assert report.scenarios.keys() == suite.scenarios(), report.output
    assert len(report.scenarios) == SCENARIOS
    assert report.count("SUCCESS") == CHECKS
    assert report.returncode == 0, report.output
    assert "Traceback" not in server.read_log(), server.read_log()
