"""
Notifications that another service publishes.
"""

import pytest
from django.db import transaction

from mcp_channels import topics
from tests.support.http import listening, request

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/api/mcp/notify/"


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ({"tools": True}, [topics.TOOLS]),
        ({"prompts": True, "tools": False}, [topics.PROMPTS]),
        ({"resources": True}, [topics.RESOURCES]),
        ({"uris": ["note://2", "note://1", "note://2"]}, [topics.resource("note://2"), topics.resource("note://1")]),
        ({"uris": [" note://1 "], "tools": True}, [topics.TOOLS, topics.resource(" note://1 ")]),
        ({"uris": ["note://ü/%00"]}, [topics.resource("note://ü/%00")]),
    ],
)
def test_what_is_said_is_published(client_of, left, said, changed):
    answer = client_of("notify").post(URL, said)
    assert (answer.status_code, answer.json()) == (202, {"topics": len(changed)})
    assert left == changed


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"tools": False, "uris": []},
        {"tools": None},
        {"tools": "perhaps"},
        {"uris": "note://1"},
        {"uris": None},
        {"uris": [1]},
        {"uris": [None]},
        {"uris": [""]},
        {"uris": [["note://1"]]},
        {"uris": ["note://\0"]},
        {"uris": ["note://1"] * 1001},
        [],
        None,
        "tools",
    ],
)
def test_what_says_nothing_publishes_nothing(client_of, left, said):
    assert client_of("notify").post(URL, said).status_code == 400
    assert left == []


def test_a_thousand_resources_fit(client_of, left):
    answer = client_of("notify").post(URL, {"uris": [f"note://{number}" for number in range(1000)]})
    assert answer.json() == {"topics": 1000}
    assert len(left) == 1000


def test_with_a_transaction_around_it_it_waits_for_the_commit(client_of, left):
    client = client_of("notify")
    with transaction.atomic():
        assert client.post(URL, {"tools": True}).status_code == 202
        assert left == []
    assert left == [topics.TOOLS]


@pytest.mark.parametrize("method", ["get", "put", "patch", "delete"])
def test_nothing_else_is_served(client_of, method):
    assert getattr(client_of("notify"), method)(URL).status_code == 405


async def test_a_listening_client_hears_it(served):
    token = served.project.worker.run(
        """
from django.contrib.auth.models import Permission
user, _ = User.objects.get_or_create(username="billing")
user.user_permissions.set(Permission.objects.filter(codename="notify"))
principal, _ = models.Principal.objects.get_or_create(name="billing", defaults={"user": user})
result = models.AccessToken.objects.issue(principal)[1]
"""
    )
    asked = {"toolsListChanged": True, "promptsListChanged": True}
    async with listening(served.port, asked, token=served.token) as stream:
        headers = {"Content-Type": "application/json"}
        async with request(served.port, path=URL, headers=headers, body=b'{"prompts": true}', token=token) as answer:
            assert answer.status == 202
        message = await stream.message()
        assert message["method"] == "notifications/prompts/list_changed"
