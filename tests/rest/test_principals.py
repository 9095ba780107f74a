"""
Principals and scopes.
"""

import pytest
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_save

from mcp_channels.models import AccessToken, Principal, Scope

pytestmark = pytest.mark.django_db

URL = "/api/mcp/principals/"
SCOPES = "/api/mcp/scopes/"


@pytest.fixture(autouse=True)
def known_scopes():
    Scope.named(["notes:read", "notes:write"])


def test_a_principal_is_made_as_asked(root, make_user):
    make_user("alice")
    asked = {
        "name": "reporter",
        "user": "alice",
        "is_active": True,
        "scopes": ["notes:write", "notes:read"],
        "max_streams": 7,
        "notes": "nightly",
    }
    answer = root.post(URL, asked)
    assert answer.status_code == 201
    shown = answer.json()
    assert {name: shown[name] for name in asked} == {**asked, "scopes": ["notes:read", "notes:write"]}
    assert shown["is_anonymous"] is False
    assert shown["last_listened_at"] is None
    assert shown["live_streams"] == 0
    row = Principal.objects.get(pk=shown["id"])
    assert row.user.username == "alice"
    assert {scope.name for scope in row.scopes.all()} == {"notes:read", "notes:write"}
    assert root.get(f"{URL}{row.pk}/").json() == shown


def test_a_name_is_enough(root):
    shown = root.post(URL, {"name": "x"}).json()
    assert shown["user"] is None
    assert shown["is_active"] is True
    assert shown["scopes"] == []
    assert shown["max_streams"] is None


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 191}, "name"),
        ({"name": "taken"}, "name"),
        ({"name": "anonymous"}, "name"),
        ({"name": "anonymous:10.0.0.1"}, "name"),
        ({"name": "x", "user": "nobody"}, "user"),
        ({"name": "x", "user": ""}, "user"),
        ({"name": "x", "scopes": ["notes:read", "nothing"]}, "scopes"),
        ({"name": "x", "scopes": "notes:read"}, "scopes"),
        ({"name": "x", "scopes": None}, "scopes"),
        ({"name": "x", "scopes": ["notes:read"] * 1001}, "scopes"),
        ({"name": "x", "max_streams": 0}, "max_streams"),
        ({"name": "x", "max_streams": -1}, "max_streams"),
        ({"name": "x", "max_streams": 2**31}, "max_streams"),
        ({"name": "x", "is_active": None}, "is_active"),
    ],
)
def test_what_can_not_be_is_refused_by_name(root, asked, field):
    Principal.objects.create(name="taken")
    before = Principal.objects.count()
    answer = root.post(URL, asked)
    assert answer.status_code == 400
    assert list(answer.json()) == [field]
    assert Principal.objects.count() == before


def test_a_user_has_one_principal(root):
    answer = root.post(URL, {"name": "x", "user": "root"})
    assert answer.status_code == 400
    assert "user" in answer.json()


def test_a_put_and_a_patch_change_what_they_name(root):
    pk = root.post(URL, {"name": "x", "scopes": ["notes:read"], "max_streams": 3, "notes": "n"}).json()["id"]
    shown = root.patch(f"{URL}{pk}/", {"max_streams": None}).json()
    assert (shown["max_streams"], shown["notes"], shown["scopes"]) == (None, "n", ["notes:read"])
    shown = root.patch(f"{URL}{pk}/", {"scopes": []}).json()
    assert shown["scopes"] == []
    shown = root.put(f"{URL}{pk}/", {"name": "y", "is_active": False}).json()
    assert (shown["name"], shown["is_active"]) == ("y", False)


def test_a_patch_writes_over_nothing_that_others_note_meanwhile(root):
    row = Principal.objects.create(name="x")

    def another(sender, instance, **kwargs):
        Principal.objects.filter(pk=row.pk).update(notes="kept")

    pre_save.connect(another, sender=Principal)
    try:
        shown = root.patch(f"{URL}{row.pk}/", {"is_active": False}).json()
    finally:
        pre_save.disconnect(another, sender=Principal)
    assert shown["is_active"] is False
    assert shown["notes"] == "kept"


def test_changes_send_the_signals_of_saves(root):
    heard = []
    listeners = {
        post_save: lambda sender, instance, **kw: heard.append(("saved", instance.is_active)),
        post_delete: lambda sender, **kw: heard.append(("deleted",)),
    }
    scopes = lambda action, **kw: heard.append((action,))  # noqa: E731
    for signal, listener in listeners.items():
        signal.connect(listener, sender=Principal)
    m2m_changed.connect(scopes, sender=Principal.scopes.through)
    try:
        pk = root.post(URL, {"name": "x", "scopes": ["notes:read"]}).json()["id"]
        assert heard == [("saved", True), ("pre_add",), ("post_add",)]
        heard.clear()
        root.patch(f"{URL}{pk}/", {"is_active": False, "scopes": []})
        assert heard == [("saved", False), ("pre_remove",), ("post_remove",)]
        heard.clear()
        assert root.delete(f"{URL}{pk}/").status_code == 204
        assert ("deleted",) in heard
    finally:
        for signal, listener in listeners.items():
            signal.disconnect(listener, sender=Principal)
        m2m_changed.disconnect(scopes, sender=Principal.scopes.through)


def test_a_deleted_principals_tokens_go_with_it(root):
    row = Principal.objects.create(name="x")
    AccessToken.objects.issue(row)
    assert root.delete(f"{URL}{row.pk}/").status_code == 204
    assert not AccessToken.objects.filter(principal_id=row.pk).exists()
    assert root.get(f"{URL}{row.pk}/").status_code == 404
    assert root.delete(f"{URL}{row.pk}/").status_code == 404


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"name": "bob"}, "name"),
        ({"name": "anonymous:10.0.0.2"}, "name"),
        ({"user": "root"}, "user"),
        ({"scopes": ["notes:read"]}, "scopes"),
    ],
)
def test_an_anonymous_principal_stays_one(root, asked, field):
    row = Principal.objects.create(name="anonymous:10.0.0.1", is_anonymous=True)
    answer = root.patch(f"{URL}{row.pk}/", asked)
    assert answer.status_code == 400
    assert list(answer.json()) == [field]


def test_an_anonymous_principal_can_be_capped_and_turned_off(root):
    row = Principal.objects.create(name="anonymous:10.0.0.1", is_anonymous=True)
    shown = root.patch(
        f"{URL}{row.pk}/", {"name": row.name, "max_streams": 1, "is_active": False, "is_anonymous": False}
    ).json()
    assert (shown["max_streams"], shown["is_active"], shown["is_anonymous"]) == (1, False, True)


def test_open_streams_are_counted(root, open_stream):
    row, other = Principal.objects.create(name="x"), Principal.objects.create(name="y")
    open_stream(row)
    open_stream(row)
    open_stream(row, state="ending")
    open_stream(other)
    shown = root.get(URL).json()["results"]
    assert {item["name"]: item["live_streams"] for item in shown} == {"principal of root": 0, "x": 2, "y": 1}
    assert root.patch(f"{URL}{row.pk}/", {"notes": "n"}).json()["live_streams"] == 2


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("is_active=false", ["off"]),
        ("is_anonymous=true", ["anonymous:10.0.0.1"]),
        ("scope=notes:read", ["x"]),
        ("is_service=false", ["principal of root"]),
        ("is_listening=true", ["x"]),
        ("is_listening=false&is_service=true", ["anonymous:10.0.0.1", "off"]),
        ("name=off", ["off"]),
        ("search=NIGHT", ["off"]),
        ("search=root", ["principal of root"]),
        ("ordering=-name", ["x", "principal of root", "off", "anonymous:10.0.0.1"]),
        ("ordering=-live_streams,name", ["x", "anonymous:10.0.0.1", "off", "principal of root"]),
    ],
)
def test_a_list_is_filtered_searched_and_ordered(root, open_stream, query, names):
    Principal.objects.create(name="off", is_active=False, notes="nightly")
    Principal.objects.create(name="anonymous:10.0.0.1", is_anonymous=True)
    row = Principal.objects.create(name="x")
    row.scopes.set(Scope.named(["notes:read"]))
    open_stream(row)
    assert [item["name"] for item in root.get(f"{URL}?{query}").json()["results"]] == names


def test_a_list_is_always_cut_into_pages(root):
    Principal.objects.bulk_create([Principal(name=f"p{number:04}") for number in range(1100)])
    page = root.get(URL).json()
    assert (page["count"], len(page["results"])) == (1101, 100)
    page = root.get(f"{URL}?page_size=5000").json()
    assert len(page["results"]) == 1000
    following = root.get(page["next"]).json()
    assert len(following["results"]) == 101
    names = [item["name"] for item in page["results"] + following["results"]]
    assert len(set(names)) == 1101


def test_scopes_are_made_described_and_deleted(root):
    shown = root.post(SCOPES, {"name": "a", "description": "to read"}).json()
    assert root.get(f"{SCOPES}{shown['id']}/").json() == shown
    changed = root.patch(f"{SCOPES}{shown['id']}/", {"name": "a", "description": "b"}).json()
    assert changed["description"] == "b"
    assert [item["name"] for item in root.get(f"{SCOPES}?search=a").json()["results"]] == [
        "a",
        "notes:read",
    ]
    assert root.post(SCOPES, {"name": "a"}).status_code == 400
    assert root.delete(f"{SCOPES}{shown['id']}/").status_code == 204


def test_a_scope_keeps_its_name(root):
    # Else whoever may change scopes could give their own the name of one that they were not granted.
    scope = Scope.objects.get(name="notes:read")
    assert root.patch(f"{SCOPES}{scope.pk}/", {"name": "admin"}).status_code == 400
    scope.refresh_from_db()
    assert scope.name == "notes:read"


def test_of_two_that_take_a_name_at_once_one_is_told_so(root):
    def another(sender, instance, **kwargs):
        if instance.notes == "second":
            Principal.objects.bulk_create([Principal(name=instance.name, notes="first")])

    pre_save.connect(another, sender=Principal)
    try:
        answer = root.post(URL, {"name": "x", "notes": "second"})
        row = Principal.objects.create(name="y")
        changed = root.patch(f"{URL}{row.pk}/", {"name": "z", "notes": "second"})
    finally:
        pre_save.disconnect(another, sender=Principal)
    assert answer.status_code == changed.status_code == 409
    row.refresh_from_db()
    assert (row.name, row.notes) == ("y", "")
