"""
Principals in the admin: the list with its caps and scopes, and one principal's page.
"""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models.signals import m2m_changed, post_save
from django.test.utils import CaptureQueriesContext

from mcp_channels.models import LiveStream, Principal, Scope

User = get_user_model()


def pk(name: str) -> int:
    return Scope.objects.get(name=name).pk


def scopes(principal: Principal) -> list[str]:
    return list(principal.scopes.values_list("name", flat=True))


@pytest.fixture
def heard():
    """
    What the signals of principals told, as the revocation of streams hears it.
    """
    events = []

    def saved(instance, update_fields, **kwargs):
        events.append(("saved", instance.name, sorted(update_fields or ())))

    def granted(instance, action, pk_set, **kwargs):
        if action.startswith("post_"):
            events.append((action, instance.name, sorted(Scope.objects.get(pk=pk).name for pk in pk_set)))

    post_save.connect(saved, sender=Principal)
    m2m_changed.connect(granted, sender=Principal.scopes.through)
    yield events
    post_save.disconnect(saved, sender=Principal)
    m2m_changed.disconnect(granted, sender=Principal.scopes.through)


def test_caps_scopes_and_the_state_are_changed_in_the_list(admin, make, heard):
    alice = make.principal("alice", "a", "b", max_streams=3)
    make.principal("bob", "a")
    Scope.objects.create(name="c")
    data = admin.listed()
    heard.clear()
    changes = {"form-0-max_streams": "1", "form-0-granted": [pk("b"), pk("c")]}
    del data["form-0-is_active"]
    assert admin.post("principal/", {**data, **changes}).status_code == 302
    alice.refresh_from_db()
    assert (alice.max_streams, alice.is_active, scopes(alice)) == (1, False, ["b", "c"])
    assert heard == [
        ("saved", "alice", ["is_active", "max_streams"]),
        ("post_add", "alice", ["c"]),
        ("post_remove", "alice", ["a"]),
    ]
    assert scopes(Principal.objects.get(name="bob")) == ["a"]
    assert LogEntry.objects.get().get_change_message() == "Changed Active, Most streams and Scopes."


def test_a_row_that_was_left_alone_is_not_saved(admin, make, heard):
    make.principal("alice", "a", max_streams=3)
    data = admin.listed()
    heard.clear()
    admin.post("principal/", data)
    assert heard == []
    assert not LogEntry.objects.exists()


def test_the_last_scope_can_be_taken_away_in_the_list(admin, make):
    alice = make.principal("alice", "a")
    data = admin.listed()
    del data["form-0-granted"]
    admin.post("principal/", data)
    assert scopes(alice) == []


def test_the_cap_can_be_left_to_the_setting_in_the_list(admin, make):
    alice = make.principal("alice", max_streams=3)
    admin.post("principal/", {**admin.listed(), "form-0-max_streams": ""})
    alice.refresh_from_db()
    assert alice.max_streams is None


def test_a_stale_list_gives_back_nothing_that_was_taken_away_meanwhile(admin, make):
    alice = make.principal("alice", "a", "b", max_streams=3)
    Scope.objects.create(name="c")
    data = admin.listed()
    alice.scopes.set(Scope.named(["b"]))
    Principal.objects.update(is_active=False, max_streams=1)
    admin.post("principal/", {**data, "form-0-granted": [pk("a"), pk("b"), pk("c")]})
    alice.refresh_from_db()
    assert (alice.is_active, alice.max_streams, scopes(alice)) == (False, 1, ["b", "c"])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"form-0-max_streams": "0"}, "Ensure this value is greater than or equal to 1."),
        ({"form-0-max_streams": "many"}, "Enter a whole number."),
        ({"form-0-max_streams": "9" * 30}, "Ensure this value is less than or equal to"),
        ({"form-0-granted": ["4711"]}, "Select a valid choice. 4711 is not one of the available choices."),
        ({"form-0-granted": ["a"]}, "Select a valid choice."),
        ({"form-0-granted": ["a"], "initial-form-0-granted": "x,²,-1"}, "Select a valid choice."),
    ],
)
def test_what_can_not_be_is_refused_in_the_list_and_nothing_is_saved(admin, make, changes, error):
    alice = make.principal("alice", "a", max_streams=3)
    response = admin.post("principal/", {**admin.listed(), **changes})
    assert response.status_code == 200
    assert error in response.content.decode()
    alice.refresh_from_db()
    assert (alice.max_streams, scopes(alice)) == (3, ["a"])


def test_a_list_without_what_it_showed_is_taken_as_it_is(admin, make):
    alice = make.principal("alice", "a", "b", is_active=False)
    data = {key: value for key, value in admin.listed().items() if not key.startswith("initial-form-")}
    admin.post("principal/", {**data, "form-0-granted": [pk("a")]})
    alice.refresh_from_db()
    assert (alice.is_active, scopes(alice)) == (False, ["a"])


def test_a_principal_that_was_deleted_meanwhile_is_an_error_in_the_list(admin, make):
    alice = make.principal("alice", "a")
    data = {**admin.listed(), "form-0-max_streams": "9"}
    alice.delete()
    response = admin.post("principal/", data)
    assert response.status_code == 200
    assert not Principal.objects.exists()


def test_anonymous_callers_have_a_cap_and_a_state_and_nothing_else_to_change(admin, make):
    visitor = make.principal("anonymous:203.0.113.7", is_anonymous=True)
    Scope.objects.create(name="a")
    data = admin.listed()
    assert "form-0-granted" not in data
    admin.post("principal/", {**data, "form-0-max_streams": "1", "form-0-granted": [pk("a")]})
    path = f"principal/{visitor.pk}/change/"
    assert set(admin.get(path).context["adminform"].form.fields) == {"is_active", "max_streams"}
    assert "New token" not in admin.text(path)
    data = {"max_streams": "2", "name": "bob", "notes": "x", "scopes": [pk("a")]}
    assert admin.post(path, admin.form(path, **data, is_active=None)).status_code == 302
    visitor.refresh_from_db()
    assert (visitor.name, visitor.notes, visitor.max_streams, visitor.is_active) == (
        "anonymous:203.0.113.7",
        "",
        2,
        False,
    )
    assert scopes(visitor) == []


def test_the_list_counts_live_streams_and_links_to_them(admin, make):
    alice, bob = make.principal("alice"), make.principal("bob")
    make.stream(alice)
    make.stream(alice, state=LiveStream.State.CHECK)
    make.stream(alice, state=LiveStream.State.ENDING)
    make.stream(alice, node=make.dead_node())
    rows = {row.name: row.live_count for row in admin.get("principal/").context["cl"].result_list}
    assert rows == {"alice": 2, "bob": 0}
    link = f"livestream/?principal={alice.pk}"
    assert f'href="/admin/mcp_channels/{link}" aria-label="alice: 2 live streams">2</a>' in admin.text("principal/")
    assert f'href="/admin/mcp_channels/{link}"' in admin.text(f"principal/{alice.pk}/change/")
    assert admin.get(link).context["cl"].result_count == 2
    assert admin.get(f"livestream/?principal={bob.pk}").context["cl"].result_count == 0


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"q": "ali"}, ["alice"]),
        ({"q": "nightly"}, ["robot"]),
        ({"q": "django-bob"}, ["bob"]),
        ({"is_active__exact": "0"}, ["robot"]),
        ({"is_anonymous__exact": "1"}, ["anonymous:::1"]),
        ({"scopes__name__exact": "a"}, []),
        ({"q": "no one"}, []),
    ],
)
def test_principals_are_found(admin, make, query, found):
    make.principal("alice", "a")
    make.principal("bob", user=User.objects.create_user("django-bob"))
    make.principal("robot", notes="runs nightly", is_active=False)
    make.principal("anonymous:::1", is_anonymous=True)
    if "scopes__name__exact" in query:
        query, found = {"scopes__id__exact": pk("a")}, ["alice"]
    assert [row.name for row in admin.get("principal/", **query).context["cl"].result_list] == found


def test_a_save_writes_only_what_was_changed(admin, make, heard):
    alice = make.principal("alice", "a")
    path = f"principal/{alice.pk}/change/"
    data = admin.form(path, notes="of marketing")
    heard.clear()
    assert admin.post(path, data).status_code == 302
    assert heard == [("saved", "alice", ["notes"])]


def test_a_principal_is_added_with_its_scopes(admin, make):
    make.principal("other", "a")
    response = admin.post("principal/add/", admin.form("principal/add/", name="bob", scopes=[pk("a")], max_streams="2"))
    assert response.status_code == 302
    bob = Principal.objects.get(name="bob")
    assert (scopes(bob), bob.max_streams, bob.is_active, bob.is_anonymous) == (["a"], 2, True, False)


@pytest.mark.parametrize(
    "changes",
    [{"name": "anonymous:::1"}, {"name": ""}, {"name": "alice"}, {"name": "b", "max_streams": "0"}, {"user": "4711"}],
)
def test_what_can_not_be_is_refused_on_the_page(admin, make, changes):
    make.principal("alice")
    response = admin.post("principal/add/", admin.form("principal/add/", **changes))
    assert response.status_code == 200
    assert response.context["errors"]
    assert Principal.objects.count() == 1


def test_those_who_may_only_look_see_no_inputs(staff, make):
    alice = make.principal("alice", "notes:read", max_streams=3)
    make.token(alice, "desk")
    viewer = staff("view_principal", "view_accesstoken")
    text = viewer.text("principal/")
    assert "notes:read" in text
    assert 'name="form-0' not in text
    text = viewer.text(f"principal/{alice.pk}/change/")
    assert "desk" in text
    for name in ("name", "max_streams", "scopes", "tokens-0-revoke", "tokens-2-0-label"):
        assert f'name="{name}"' not in text
    assert viewer.post("principal/", {"_save": "Save"}).status_code == 403
    assert viewer.post(f"principal/{alice.pk}/change/", {"name": "bob"}).status_code == 403
    assert staff().get("principal/").status_code == 403


@pytest.mark.parametrize("page", ["principal/", "principal/{}/change/", "scope/"])
def test_the_queries_of_a_page_do_not_grow_with_its_rows(admin, make, page):
    def fill(numbers) -> None:
        for number in numbers:
            row = make.principal(f"p{number}", f"s{number}", "a", user=User.objects.create_user(f"u{number}"))
            make.stream(row)
            make.token(row if number else alice, f"t{number}", scopes=["a"])
            make.token(alice, f"a{number}", scopes=["a"])

    alice = make.principal("alice", "a")
    fill([0])
    path = page.format(alice.pk)
    admin.get(path)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            admin.text(path)
        counts.append(len(queries))
        if len(counts) == 1:
            fill(range(1, 50))
    assert counts[0] == counts[1]
    assert admin.get("principal/").context["cl"].result_count == 51


def test_a_full_page_of_many_scopes_can_be_sent(admin, make):
    names = [f"s{number}" for number in range(12)]
    for number in range(60):
        make.principal(f"p{number}", *names)
    data = admin.listed()
    assert data["form-TOTAL_FORMS"] == 50
    assert admin.post("principal/", {**data, "form-49-max_streams": "9"}).status_code == 302
    assert Principal.objects.get(max_streams=9).pk == data["form-49-id"]
    assert "Show all" not in admin.text("principal/")
