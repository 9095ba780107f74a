import sys
from pathlib import Path

import pytest

from tests.clients import node

# Counts its runs, and leaves a package behind whether it succeeds or not.
NPM = """#!{python}
from pathlib import Path
with Path({runs!r}).open("a") as runs:
    runs.write("x")
Path("node_modules/package").mkdir(parents=True)
raise SystemExit({status})
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """
    A directory with manifests, a cache of its own, and no tool but those that the test makes.
    """
    source = tmp_path / "source"
    source.mkdir()
    for name in ("package.json", "package-lock.json"):
        (source / name).write_text("{}")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(node, "CACHE", tmp_path / "cache")
    return source


def _make_npm(tmp_path: Path, *, status: int) -> Path:
    runs = tmp_path / "runs"
    npm = tmp_path / "bin" / "npm"
    npm.write_text(NPM.format(python=sys.executable, runs=str(runs), status=status))
    npm.chmod(0o755)
    return runs


@pytest.mark.parametrize("name", ["node", "npm"])
def test_a_missing_tool_is_named_with_what_it_is_for(source: Path, name: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=f"{name} is missing: it is needed here"):
        node.tool(name, purpose="it is needed here")


def test_an_installation_is_kept_while_its_manifests_stay_the_same(source: Path, tmp_path: Path) -> None:
    runs = _make_npm(tmp_path, status=0)
    first = node.installed(source)
    assert (first / "node_modules" / "package").is_dir()
    assert node.installed(source) == first
    assert runs.read_text() == "x"
    (source / "package.json").write_text("{ }")
    assert node.installed(source) != first


def test_a_broken_installation_is_not_kept(source: Path, tmp_path: Path) -> None:
    _make_npm(tmp_path, status=1)
    with pytest.raises(pytest.fail.Exception, match="npm could not install"):
        node.installed(source)
    assert list((tmp_path / "cache").iterdir()) == []
