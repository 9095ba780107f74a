"""
The floors of the package: what each module may import, besides the standard library. A new arrow is a change here
first.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mcp_channels"

SDK = {"mcp", "mcp_types", "pydantic"}
DJANGO = {"django", "channels", "asgiref"}

ALLOWED: dict[str, set[str]] = {
    "mcp_channels": {"mcp_channels"},
    "mcp_channels.topics": set(),
    "mcp_channels.signals": {"django"},
    "mcp_channels.telemetry": {"django"},
    "mcp_channels.conf": {"django"},
    "mcp_channels.grants": {"django"},
    "mcp_channels.models": {"django", "mcp_channels.grants"},
    "mcp_channels.publisher": {
        "channels",
        "mcp_channels.conf",
        "mcp_channels.layers",
        "mcp_channels.signals",
        "mcp_channels.telemetry",
        "mcp_channels.topics",
    },
    "mcp_channels.listen.filter": {"mcp_channels.topics"},
    "mcp_channels.listen.frames": {"mcp_channels.topics"},
    "mcp_channels.layers": {"channels"},
    "mcp_channels.batching": {"channels"},
    "mcp_channels.listen": {
        "channels",
        "django",
        "mcp_channels.batching",
        "mcp_channels.conf",
        "mcp_channels.models",
        "mcp_channels.layers",
        "mcp_channels.listen",
        "mcp_channels.publisher",
        "mcp_channels.signals",
        "mcp_channels.telemetry",
        "mcp_channels.topics",
    },
    "mcp_channels.otel": {
        "opentelemetry",
        "mcp_channels",
        "mcp_channels.listen.hub",
        "mcp_channels.signals",
        "mcp_channels.telemetry",
    },
    "mcp_channels.auth": {
        "django",
        "rest_framework",
        "mcp_channels.auth",
        "mcp_channels.listen",
        "mcp_channels.models",
    },
    "mcp_channels.notify": {"django", "asgiref", "mcp_channels.publisher", "mcp_channels.topics"},
    "mcp_channels.resources": {
        *DJANGO,
        "rest_framework",
        "mcp",
        "mcp_types",
        "mcp_channels.auth",
        "mcp_channels.batching",
        "mcp_channels.models",
        "mcp_channels.notify",
        "mcp_channels.resources",
        "mcp_channels.topics",
    },
    "mcp_channels.sdk": SDK,
    "mcp_channels.server": {
        *SDK,
        *DJANGO,
        "mcp_channels.auth",
        "mcp_channels.conf",
        "mcp_channels.models",
        "mcp_channels.notify",
        "mcp_channels.resources",
        "mcp_channels.sdk",
        "mcp_channels.topics",
    },
    "mcp_channels.endpoint": {
        *SDK,
        *DJANGO,
        "mcp_channels.auth",
        "mcp_channels.batching",
        "mcp_channels.conf",
        "mcp_channels.endpoint",
        "mcp_channels.listen",
        "mcp_channels.models",
        "mcp_channels.resources",
        "mcp_channels.sdk",
        "mcp_channels.server",
    },
    "mcp_channels.rest": {
        "django",
        "rest_framework",
        "drf_spectacular",
        "mcp_channels.auth.delegation",
        "mcp_channels.conf",
        "mcp_channels.listen.orders",
        "mcp_channels.models",
        "mcp_channels.notify",
        "mcp_channels.rest",
        "mcp_channels.topics",
    },
    "mcp_channels.checks": {
        "django",
        "channels",
        "mcp_channels.conf",
        "mcp_channels.endpoint.endpoint",
        "mcp_channels.models",
    },
    "mcp_channels.apps": {"django", "mcp_channels"},
    "mcp_channels.admin": {
        "django",
        "mcp_channels.admin",
        "mcp_channels.auth.delegation",
        "mcp_channels.conf",
        "mcp_channels.listen.orders",
        "mcp_channels.models",
    },
    "mcp_channels.client": {*SDK, "httpx2", "mcp_channels.client"},
    "mcp_channels.management": {
        "django",
        "mcp_channels.client",
        "mcp_channels.listen.orders",
        "mcp_channels.models",
        "mcp_channels.notify",
        "mcp_channels.publisher",
        "mcp_channels.topics",
    },
    "mcp_channels.migrations": {"django", "mcp_channels.models"},
}

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imports(path: Path) -> set[str]:
    """
    Every module that a file imports, wherever it does so; ``from package import module`` names the module.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
    return found


def rule(module: str) -> set[str]:
    """
    The most specific entry of the table.
    """
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in ALLOWED and (length == len(parts) or prefix != "mcp_channels"):
            return ALLOWED[prefix]
    raise AssertionError(f"{module} is not in the table")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module):
    allowed = rule(module)
    for name in imports(MODULES[module]):
        if name.split(".")[0] in sys.stdlib_module_names or name == module:
            continue
        if name == "mcp_channels" and "mcp_channels" in allowed:
            continue
        fits = any(name == prefix or name.startswith(prefix + ".") for prefix in allowed if prefix != "mcp_channels")
        assert fits or (module in ("mcp_channels", "mcp_channels.apps") and name.startswith("mcp_channels.")), (
            f"{module} imports {name}"
        )


def test_there_are_no_circles():
    graph = {module: {name for name in imports(path) if name in MODULES} - {module} for module, path in MODULES.items()}
    graph["mcp_channels"] = set()  # its imports are lazy
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for name in graph[module]:
                visit(name, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("module", ["mcp_channels.client", "mcp_channels.topics", "mcp_channels.listen.frames"])
def test_some_parts_need_no_django(module):
    code = f"import sys; sys.modules['django'] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_importing_the_package_imports_nothing_of_it():
    code = (
        "import sys, mcp_channels; sys.exit(any(n.startswith('mcp_channels.') or n == 'django' for n in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_public_name_is_there():
    import mcp_channels

    for name in mcp_channels.__all__:
        assert getattr(mcp_channels, name) is not None
    with pytest.raises(AttributeError):
        mcp_channels.nothing  # noqa: B018


def test_every_definition_that_is_public_is_documented():
    missing = []
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text())
        if "migrations" in module:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                members = [
                    node,
                    *(item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)),
                ]
                missing += [
                    f"{module}.{node.name}.{item.name}"
                    for item in members
                    if not item.name.startswith("_") and item.name != "Meta" and not ast.get_docstring(item)
                ]
        missing += [
            f"{module}.{item.name}"
            for item in tree.body
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            and not item.name.startswith("_")
            and not ast.get_docstring(item)
        ]
    assert missing == []
