"""
Tokens in the admin: made on a principal's page, shown once, and revoked.
"""

import json
import logging
import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.db import connection
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_channels.admin.forms import SHOWN, Issued
from mcp_channels.models import AccessToken, Principal, Scope

VALUE = re.compile(r"mcp_[\w-]{40,}")


def page(principal: Principal) -> str:
    return f"principal/{principal.pk}/change/"


def issue(admin, principal: Principal, **fields):
    """
    Make a token on a principal's page; returns the answer.
    """
    new = {"tokens-2-0-label": "laptop", **{f"tokens-2-0-{name}": value for name, value in fields.items()}}
    return admin.post(page(principal), admin.form(page(principal), **new))


@pytest.fixture
def saved():
    """
    The tokens that were saved with a date of revocation, as the revocation of streams hears it.
    """
    tokens = []

    def receive(instance, **kwargs):
        if instance.revoked_at is not None:
            tokens.append(instance.label)

    post_save.connect(receive, sender=AccessToken)
    yield tokens
    post_save.disconnect(receive, sender=AccessToken)


def test_a_new_token_is_shown_once_and_works(admin, make):
    alice = make.principal("alice", "a")
    response = issue(admin, alice)
    assert response.status_code == 200
    assert "no-store" in response.headers["Cache-Control"]
    [value] = set(VALUE.findall(response.content.decode()))
    token = AccessToken.objects.find([value])[value]
    assert (token.principal, token.label, token.is_narrowed, token.expires_at) == (alice, "laptop", False, None)
    assert token.granted == {"a"}
    assert 'href="/admin/mcp_channels/principal/"' in response.content.decode()
    assert not VALUE.search(admin.text(page(alice)))
    assert "laptop" in admin.text(page(alice))


def test_a_token_may_be_narrowed_and_end(admin, make):
    alice = make.principal("alice", "a", "b")
    ends = timezone.now().replace(microsecond=0) + timedelta(days=9)
    response = issue(
        admin,
        alice,
        scopes=[Scope.objects.get(name="b").pk],
        expires_at_0=ends.date().isoformat(),
        expires_at_1=ends.time().isoformat(),
    )
    [value] = set(VALUE.findall(response.content.decode()))
    token = AccessToken.objects.find([value])[value]
    assert token.granted == {"b"}
    assert abs(token.expires_at - ends) < timedelta(seconds=5)


def test_a_principal_is_added_with_a_token(admin):
    data = admin.form("principal/add/", name="bob", **{"tokens-0-label": "laptop"})
    response = admin.post("principal/add/", data)
    [value] = set(VALUE.findall(response.content.decode()))
    assert AccessToken.objects.find([value])[value].principal.name == "bob"


def test_a_page_without_a_label_makes_no_token(admin, make):
    alice = make.principal("alice")
    assert admin.post(page(alice), admin.form(page(alice))).status_code == 302
    assert not AccessToken.objects.exists()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"expires_at_0": "2020-01-01", "expires_at_1": "00:00"}, "This is in the past."),
        ({"expires_at_0": "soon", "expires_at_1": "00:00"}, "Enter a valid date."),
        ({"expires_at_0": "9999-12-31", "expires_at_1": "x"}, "Enter a valid time."),
        ({"scopes": ["4711"]}, "Select a valid choice."),
        ({"label": "", "expires_at_0": "2999-01-01", "expires_at_1": "00:00"}, "This field is required."),
        ({"label": "x" * 191}, "Ensure this value has at most 190 characters"),
    ],
)
def test_what_can_not_be_makes_no_token(admin, make, fields, error):
    alice = make.principal("alice")
    response = issue(admin, alice, **fields)
    assert response.status_code == 200
    assert error in response.content.decode()
    assert not AccessToken.objects.exists()


def test_an_error_elsewhere_on_the_page_makes_no_token(admin, make):
    alice = make.principal("alice")
    response = admin.post(page(alice), admin.form(page(alice), name="", **{"tokens-2-0-label": "laptop"}))
    assert not VALUE.search(response.content.decode())
    assert not AccessToken.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("storage", ["fallback.FallbackStorage", "session.SessionStorage", "cookie.CookieStorage"])
def test_a_value_is_nowhere_but_on_its_page(admin, make, caplog, settings, storage):
    settings.MESSAGE_STORAGE = f"django.contrib.messages.storage.{storage}"
    settings.DEBUG = True  # every statement is logged too
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "django.db.backends")
    alice = make.principal("alice")
    response = issue(admin, alice, _continue="1")
    [value] = set(VALUE.findall(response.content.decode()))
    assert AccessToken.objects.find([value])
    secret = value.removeprefix(AccessToken.objects.get().prefix)
    seen = [record.getMessage() + repr(record.__dict__) for record in caplog.records]
    assert any("INSERT" in text for text in seen)
    seen += [repr(row) for row in LogEntry.objects.values_list()]
    seen += [repr(session.get_decoded()) + session.session_data for session in Session.objects.all()]
    seen += [repr(admin.client.cookies), repr(response.headers), repr(AccessToken.objects.values_list())]
    for path in (page(alice), "principal/", "accesstoken/", f"principal/{alice.pk}/history/"):
        seen.append(admin.text(path))
    assert any("laptop" in text for text in seen)
    assert [text for text in seen if secret in text] == []


def test_a_value_is_in_no_error_page(admin, make, settings, monkeypatch):
    settings.DEBUG = True
    alice = make.principal("alice")
    values = []
    issue_token = AccessToken.objects.issue

    def issued(*args, **kwargs):
        token, value = issue_token(*args, **kwargs)
        values.append(value)
        return token, value

    def fail(*args, **kwargs):
        raise RuntimeError("the history is full")

    monkeypatch.setattr(AccessToken.objects, "issue", issued)
    monkeypatch.setattr(LogEntry.objects, "log_actions", fail)
    admin.client.raise_request_exception = False
    response = issue(admin, alice)
    assert response.status_code == 500
    assert "the history is full" in response.content.decode()
    [value] = values
    assert value not in response.content.decode()
    assert value not in repr(Issued(AccessToken(), value))


def test_a_pop_up_makes_no_token(admin, make):
    alice = make.principal("alice")
    assert "New token" not in admin.text("principal/add/?_popup=1")
    data = admin.form(page(alice), _popup="1", **{"tokens-2-0-label": "laptop"})
    admin.post(page(alice), data)
    assert not AccessToken.objects.exists()


def test_a_token_is_revoked_on_the_page_of_its_principal(admin, make, saved):
    alice = make.principal("alice")
    for label in ("old", "lost", "good"):
        make.token(alice, label)
    AccessToken.objects.filter(label="old").update(revoked_at=timezone.now() - timedelta(days=1))
    before = AccessToken.objects.get(label="old").revoked_at
    data = admin.form(page(alice))
    index = next(n for n in range(3) if data[f"tokens-{n}-id"] == AccessToken.objects.get(label="lost").pk)
    assert admin.post(page(alice), {**data, f"tokens-{index}-revoke": "on"}).status_code == 302
    assert saved == ["lost"]
    assert list(AccessToken.objects.filter(revoked_at=None).values_list("label", flat=True)) == ["good"]
    assert AccessToken.objects.get(label="old").revoked_at == before
    assert "Changed Revoke for token “mcp_" in LogEntry.objects.get().get_change_message()


def test_nothing_of_a_token_changes_but_its_end(admin, make):
    alice = make.principal("alice")
    token = make.token(alice, "desk", lifetime=timedelta(days=1))
    before = AccessToken.objects.values().get()
    wider = {"label": "x", "expires_at": "", "expires_at_0": "", "is_narrowed": "", "scopes": [], "revoked_at": ""}
    data = admin.form(page(alice), **{f"tokens-0-{name}": value for name, value in wider.items()})
    admin.post(page(alice), data)
    assert AccessToken.objects.values().get() == before
    path = f"accesstoken/{token.pk}/change/"
    assert admin.post(path, admin.form(path, **{**wider, "label": "a new label"})).status_code == 302
    assert AccessToken.objects.values().get() == {**before, "label": "a new label"}


def test_a_token_is_revoked_on_its_own_page_for_good(admin, make, saved):
    token = make.token(make.principal("alice"), "desk")
    path = f"accesstoken/{token.pk}/change/"
    AccessToken.objects.update(last_used_at=timezone.now())
    admin.post(path, admin.form(path, revoke="on"))
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert token.last_used_at is not None
    assert saved == ["desk"]
    admin.post(path, admin.form(path))
    assert AccessToken.objects.get().revoked_at == token.revoked_at


def test_selected_tokens_are_revoked_each_with_a_signal(admin, make, saved):
    alice = make.principal("alice")
    tokens = [make.token(alice, label) for label in ("a", "b", "c", "d")]
    AccessToken.objects.filter(label="c").update(revoked_at=timezone.now() - timedelta(days=1))
    before = AccessToken.objects.get(label="c").revoked_at
    response = admin.act("accesstoken/", "revoke_selected", tokens[:3])
    assert response.status_code == 302
    assert sorted(saved) == ["a", "b"]
    assert list(AccessToken.objects.filter(revoked_at=None).values_list("label", flat=True)) == ["d"]
    assert AccessToken.objects.get(label="c").revoked_at == before
    assert "Revoked 2 tokens." in admin.text("accesstoken/")
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Revoked."] * 2


def test_permissions_decide_who_makes_and_who_revokes(staff, make):
    alice = make.principal("alice")
    token = make.token(alice, "desk")
    changer = staff("change_principal", "view_accesstoken")
    form = changer.form(page(alice), **{"tokens-0-revoke": "on"})
    assert "tokens-2-TOTAL_FORMS" not in form
    new = {"tokens-2-TOTAL_FORMS": "1", "tokens-2-INITIAL_FORMS": "0", "tokens-2-0-label": "laptop"}
    assert changer.post(page(alice), {**form, **new}).status_code == 302
    changer.act("accesstoken/", "revoke_selected", [token])
    changer.post(f"accesstoken/{token.pk}/change/", {"label": "x", "revoke": "on"})
    assert [(row.label, row.revoked_at) for row in AccessToken.objects.all()] == [("desk", None)]
    assert staff("add_accesstoken").get("principal/").status_code == 403
    adder = staff("change_principal", "add_accesstoken")
    path = page(alice)
    response = adder.post(path, adder.form(path, **{"tokens-0-label": "laptop"}))
    assert VALUE.search(response.content.decode())
    assert adder.get("accesstoken/").status_code == 403
    for user in (changer, adder):
        assert user.get("accesstoken/add/").status_code == 403


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["expired", "good", "revoked"]),
        ({"q": "goo"}, ["good"]),
        ({"q": "bob"}, ["revoked"]),
        ({"state": "good"}, ["good"]),
        ({"state": "expired"}, ["expired"]),
        ({"state": "revoked"}, ["revoked"]),
        ({"state": "nonsense"}, ["expired", "good", "revoked"]),
        ({"is_narrowed__exact": "1"}, ["expired"]),
    ],
)
def test_tokens_are_found(admin, make, query, found):
    alice, bob = make.principal("alice"), make.principal("bob")
    good = make.token(alice, "good", lifetime=timedelta(days=1))
    make.token(alice, "expired", lifetime=timedelta(seconds=-1), scopes=["a"])
    make.token(bob, "revoked")
    AccessToken.objects.filter(label="revoked").update(revoked_at=timezone.now())
    labels = [row.label for row in admin.get("accesstoken/", **query).context["cl"].result_list]
    assert sorted(labels) == found
    assert admin.get("accesstoken/", q=good.prefix).context["cl"].result_count == 1
    assert admin.get("accesstoken/", principal=bob.pk).context["cl"].result_count == 1


@pytest.mark.parametrize("value", ["x", "-1", "9" * 30, "\0", "1,2"])
def test_a_principal_that_can_not_be_is_no_error(admin, value):
    for path in ("accesstoken/", "livestream/"):
        response = admin.get(path, principal=value)
        assert response.status_code in (200, 302)
        if response.status_code == 302:
            assert response.headers["Location"].endswith("?e=1")


def test_a_principal_of_many_tokens_has_a_page_of_its_newest(admin, make):
    alice = make.principal("alice")
    for number in range(SHOWN + 5):
        make.token(alice, f"t{number}")
    assert len(admin.get(page(alice)).context["inline_admin_formsets"][0].formset.forms) == SHOWN
    data = admin.form(page(alice), **{"tokens-0-revoke": "on"})
    make.token(alice, "made meanwhile")
    assert admin.post(page(alice), data).status_code == 302
    assert [row.pk for row in AccessToken.objects.exclude(revoked_at=None)] == [data["tokens-0-id"]]


def test_a_token_that_was_deleted_meanwhile_is_no_failure(admin, make):
    alice = make.principal("alice")
    token = make.token(alice, "desk")
    data = admin.form(page(alice), **{"tokens-0-revoke": "on"})
    token.delete()
    assert admin.post(page(alice), data).status_code == 200
    assert not AccessToken.objects.exists()


@pytest.mark.parametrize("query", [{}, {"principal": 1}, {"_facets": "True"}])
def test_the_queries_of_the_list_do_not_grow_with_its_rows(admin, make, query):
    alice = make.principal("alice")
    query = {name: alice.pk if name == "principal" else value for name, value in query.items()}
    make.token(alice, "t", scopes=["a"])
    admin.get("accesstoken/", **query)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            admin.text("accesstoken/", **query)
        counts.append(len(queries))
        for number in range(49):
            make.token(alice, f"t{number}", scopes=["a", f"s{number}"])
    assert counts[0] == counts[1]


def test_history_messages_are_readable(admin, make):
    alice = make.principal("alice")
    issue(admin, alice)
    [entry] = LogEntry.objects.all()
    assert json.loads(entry.change_message)[0] == {"added": {"name": "token", "object": str(AccessToken.objects.get())}}


STAFF = ("view_principal", "change_principal", "add_accesstoken", "view_accesstoken")


def test_nobody_makes_a_token_of_somebody_who_may_do_more(staff, make):
    boss = get_user_model().objects.create_superuser("boss")
    principal = make.principal("boss", user=boss)
    response = issue(staff(*STAFF), principal)
    assert "may do more than you may" in response.content.decode()
    assert not AccessToken.objects.exists()


def test_who_may_do_less_can_be_spoken_for(staff, make):
    clerk = get_user_model().objects.create(username="clerk")
    response = issue(staff(*STAFF), make.principal("clerk", user=clerk))
    assert VALUE.search(response.content.decode())


def test_nobody_links_a_principal_to_somebody_who_may_do_more(staff, admin, make):
    boss = get_user_model().objects.create_superuser("boss")
    principal = make.principal("service")
    someone = staff(*STAFF)
    response = someone.post(page(principal), someone.form(page(principal), user=str(boss.pk)))
    assert "may do more than you may" in response.content.decode()
    principal.refresh_from_db()
    assert principal.user is None
    admin.post(page(principal), admin.form(page(principal), user=str(boss.pk)))
    principal.refresh_from_db()
    assert principal.user == boss
