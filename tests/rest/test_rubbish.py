"""
What makes no sense is refused, and never the server's fault.
"""

import json

import pytest

from tests.rest.rubbish import DEEP, offences

URL = "/api/mcp/notify/"


@pytest.mark.django_db
def test_rubbish_is_refused():
    *found, count = offences()
    assert found == []
    assert int(count) > 1000


def test_rubbish_is_refused_on_postgres(make_project, postgres):
    project = make_project(DATABASE_URL=postgres.create("rubbish"))
    *found, count = project.worker.run("from tests.rest.rubbish import offences\nresult = offences()")
    assert found == []
    assert int(count) > 1000


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * DEEP, 400),
        (b'{"tools": NaN}', 400),
        (b'{"uris": ["\\ud800"]}', 400),
        (b'"\xff"', 400),
    ],
)
def test_what_is_no_json_or_no_text_is_the_callers_fault(root, body, status):
    assert root.generic("POST", URL, body, content_type="application/json").status_code == status


@pytest.mark.django_db
def test_another_type_than_json_is_415(root):
    assert root.post(URL, {"tools": True}, format="multipart").status_code == 415


@pytest.mark.django_db
def test_a_body_over_the_limit_is_413(root, settings):
    settings.MCP_CHANNELS = {"MAX_BODY_SIZE": 1000}
    body = json.dumps({"tools": True})
    fits, longer = body.ljust(1000), body.ljust(1001)
    assert root.generic("POST", URL, fits, content_type="application/json").status_code == 202
    assert root.generic("POST", URL, longer, content_type="application/json").status_code == 413


@pytest.mark.django_db
def test_a_search_of_many_words_is_refused(root):
    assert root.get("/api/mcp/tokens/", {"search": "a " * 10}).status_code == 200
    assert root.get("/api/mcp/tokens/", {"search": "a " * 11}).status_code == 400
