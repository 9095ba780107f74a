"""
The documentation: its code runs, its tables are true, its links lead somewhere.
"""

import re
from pathlib import Path

import pytest
from django.core.management import load_command_class

import mcp_channels
from mcp_channels.conf import DEFAULTS
from tests.support.processes import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks/README.md",
]
DEPLOY = ROOT / "deploy"
CONFIGURATIONS = ROOT / "docs" / "topics" / "configurations.md"
ADMIN = ROOT / "docs" / "topics" / "admin.md"
FILE = re.compile(r"<!-- file: (?P<path>\S+) -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)
BLOCK = re.compile(r"(?P<step><!-- step: .* -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page):
    # What belongs to the README's new project is run by test_package.py.
    blocks = [match["code"] for match in BLOCK.finditer(page.read_text()) if not match["step"]]
    space: dict[str, object] = {"__name__": f"docs_{page.stem}"}
    for block in blocks:
        exec(compile(block, name(page), "exec"), space)


def test_the_configurations_are_the_files():
    shown = {match["path"]: match["text"] for match in FILE.finditer(CONFIGURATIONS.read_text())}
    files = {name(path): path.read_text() for path in DEPLOY.rglob("*") if path.is_file() and "tls" not in path.parts}
    assert shown == files


def anchors(page: Path) -> set[str]:
    """
    What a link to a heading of the page may name.
    """
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_every_picture_is_shown_and_small():
    shown = {
        (ROOT / "docs" / "topics" / path).resolve() for path in re.findall(r"!\[.*?\]\((.*?)\)", ADMIN.read_text())
    }
    pictures = set((ROOT / "docs" / "images").iterdir())
    assert shown == pictures
    assert [path.name for path in pictures if path.stat().st_size > 150_000] == []


def rows(page: str) -> list[list[str]]:
    lines = (ROOT / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_the_settings_table_is_the_settings():
    documented = {
        row[0].strip("`"): row[1].strip("`")
        for row in rows("docs/reference/settings.md")
        if row[0].isupper() or row[0].strip("`").isupper()
    }
    assert documented == {key: repr(value).replace("'", '"') for key, value in DEFAULTS.items()}


def test_the_checks_table_is_the_checks():
    source = (ROOT / "mcp_channels/checks.py").read_text()
    documented = [row[0].strip("`") for row in rows("docs/reference/checks.md")]
    assert sorted(documented) == sorted(set(re.findall(r'id="(mcp_channels\.\w+)"', source)))


def test_every_public_name_is_documented():
    text = (ROOT / "docs/reference/api.md").read_text()
    assert [name for name in mcp_channels.__all__ if f"`{name}`" not in text] == ["__version__"]


def test_every_option_of_every_command_is_documented():
    text = (ROOT / "docs/reference/commands.md").read_text()
    for command in ("mcp_token", "mcp_notify", "mcp_listen", "mcp_streams"):
        parser = load_command_class("mcp_channels", command).create_parser("manage.py", command)
        common = load_command_class("django.core", "check").create_parser("manage.py", "check")
        known = {option for action in common._actions for option in action.option_strings} | {"--skip-checks"}
        for action in parser._actions:
            for option in set(action.option_strings) - known:
                assert f"`{option}" in text, f"{command} {option}"


def test_the_two_commands_of_the_readme_are_one_line_each():
    text = (ROOT / "README.md").read_text()
    for marker in ("demo", "tests"):
        [block] = re.findall(rf"<!-- {marker} -->\n```bash\n(.*?)```", text, re.DOTALL)
        assert block.count("\n") == 1
        assert block.startswith("python3 -m venv .venv && .venv/bin/pip install")


def test_the_readme_says_what_it_is_in_a_few_lines():
    intro = (ROOT / "README.md").read_text().split("## ")[0]
    assert len(intro.strip().splitlines()) <= 8
