"""
Open streams, and their ends.
"""

from datetime import timedelta

import pytest
from django.utils import timezone

from mcp_channels.models import AccessToken, LiveStream, Node, Principal

pytestmark = pytest.mark.django_db

URL = "/api/mcp/streams/"


@pytest.fixture
def alice():
    return Principal.objects.create(name="alice")


def test_an_open_stream_is_shown(root, alice, open_stream):
    token, _ = AccessToken.objects.issue(alice)
    told = {"client_name": "inspector", "client_version": "1.2", "address": "10.0.0.1", "delivered": 5}
    row = open_stream(alice, token=token, **told)
    row.refresh_from_db()
    [shown] = root.get(URL).json()["results"]
    assert root.get(f"{URL}{row.pk}/").json() == shown
    assert shown.pop("opened_at")
    assert shown == {
        "id": row.pk,
        "principal": alice.pk,
        "principal_name": "alice",
        "token": token.pk,
        "endpoint": "notes",
        "kinds": ["toolsListChanged", "resourceSubscriptions"],
        "uri_count": 3,
        "node": "web1:17",
        "last_delivery_at": None,
        **told,
    }


def test_a_stream_whose_principal_is_gone_is_shown(root, open_stream):
    open_stream(None, kinds="")
    [shown] = root.get(URL).json()["results"]
    assert shown["principal"] is shown["principal_name"] is shown["token"] is None
    assert shown["kinds"] == []


def test_what_is_not_open_is_not_there(root, alice, open_stream):
    ending = open_stream(alice, state="ending")
    silent = Node.objects.create(id="b", host="web2", pid=1, seen_at=timezone.now() - timedelta(minutes=5))
    lost = open_stream(alice, node=silent)
    assert root.get(URL).json()["count"] == 0
    for row in (ending, lost):
        assert root.get(f"{URL}{row.pk}/").status_code == 404
        assert root.post(f"{URL}{row.pk}/disconnect/").status_code == 404
        assert root.delete(f"{URL}{row.pk}/").status_code == 404
    answer = root.post(f"{URL}disconnect/", {"ids": [ending.pk, lost.pk]})
    assert answer.json() == {"disconnected": 0}


@pytest.mark.parametrize("how", ["disconnect", "delete"])
def test_one_is_ended(root, alice, open_stream, how):
    row, other = open_stream(alice), open_stream(alice)
    if how == "delete":
        answer = root.delete(f"{URL}{row.pk}/")
        assert (answer.status_code, answer.content) == (204, b"")
    else:
        answer = root.post(f"{URL}{row.pk}/disconnect/")
        assert (answer.status_code, answer.json()) == (202, {"disconnected": 1})
    row.refresh_from_db()
    other.refresh_from_db()
    assert (row.state, row.reason) == (LiveStream.State.ENDING, "revoked")
    assert other.state == LiveStream.State.OPEN
    assert [item["id"] for item in root.get(URL).json()["results"]] == [other.pk]


def test_many_are_ended(root, alice, open_stream):
    rows = [open_stream(alice) for _ in range(3)]
    answer = root.post(f"{URL}disconnect/", {"ids": [rows[0].pk, rows[1].pk, rows[1].pk, 2**63 - 1]})
    assert (answer.status_code, answer.json()) == (202, {"disconnected": 2})
    assert [item["id"] for item in root.get(URL).json()["results"]] == [rows[2].pk]


@pytest.mark.parametrize(
    "asked", [{}, {"ids": []}, {"ids": None}, {"ids": "all"}, {"ids": [0]}, {"ids": [2**63]}, {"ids": [1] * 1001}, []]
)
def test_what_names_no_streams_ends_none(root, alice, open_stream, asked):
    open_stream(alice)
    assert root.post(f"{URL}disconnect/", asked).status_code == 400
    assert root.get(URL).json()["count"] == 1


def test_a_stream_is_not_made_or_changed(root, alice, open_stream):
    row = open_stream(alice)
    assert root.post(URL, {"endpoint": "x"}).status_code == 405
    assert root.patch(f"{URL}{row.pk}/", {"endpoint": "x"}).status_code == 405
    assert root.get(f"{URL}disconnect/").status_code == 405


def test_a_list_is_filtered_searched_and_ordered(root, alice, open_stream):
    one = open_stream(alice, address="10.0.0.1", delivered=2)
    two = open_stream(None, endpoint="open", client_name="inspector")

    def found(query):
        return [item["id"] for item in root.get(f"{URL}?{query}").json()["results"]]

    assert found("") == [two.pk, one.pk]
    assert found("ordering=delivered") == [two.pk, one.pk]
    assert found("ordering=id") == [one.pk, two.pk]
    assert found(f"principal={alice.pk}") == [one.pk]
    assert found("endpoint=open") == [two.pk]
    assert found("address=10.0.0.1") == [one.pk]
    assert found("host=web1") == [two.pk, one.pk]
    assert found("host=web2") == []
    assert found("token=1") == []
    assert found("search=ALI") == [one.pk]
    assert found("search=inspect") == [two.pk]
