import ast
from pathlib import Path

from tests.spec_requirements import REQUIREMENTS

TESTS = Path(__file__).parent


def _named() -> dict[str, set[str]]:
    """
    The requirements that each test function names, read from the source, so that no selection of tests changes it.
    """
    named: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "requirement":
                    named.setdefault(node.name, set()).update(argument.value for argument in decorator.args)
    return named


def test_every_requirement_has_a_test():
    shown = set().union(*_named().values())
    assert sorted(set(REQUIREMENTS) - shown) == []


def test_every_name_is_a_requirement():
    named = set().union(*_named().values())
    assert sorted(named - set(REQUIREMENTS)) == []
