"""
Decisions on requests that arrive together.
"""

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError
from django.test import RequestFactory

from example_project.notes.mcp import server
from example_project.notes.models import Note
from mcp_channels.endpoint.endpoint import Admitted, Asked, Endpoint
from mcp_channels.endpoint.request import Refusal
from mcp_channels.listen.filter import Filter
from mcp_channels.models import AccessToken, Principal, Scope
from mcp_channels.resources import authorize

pytestmark = pytest.mark.django_db


@pytest.fixture
def endpoint():
    return Endpoint(server)


def token(name: str, *, scopes=("notes:read",), narrowed=None) -> str:
    user = get_user_model().objects.create(username=name)
    principal = Principal.objects.create(name=name, user=user)
    principal.scopes.set(Scope.named(scopes))
    return AccessToken.objects.issue(principal, scopes=narrowed)[1]


def asked(value: str | None, *uris: str) -> Asked:
    headers = {} if value is None else {"Authorization": f"Bearer {value}"}
    request = RequestFactory().post("/mcp", headers=headers)
    return Asked(request, Filter(frozenset(), uris) if uris else None)


def test_each_of_a_batch_gets_its_own_answer(endpoint, django_assert_num_queries):
    alice, bob, nobody = token("alice"), token("bob"), token("nobody", scopes=())
    notes = {
        name: Note.objects.create(title="x", owner=get_user_model().objects.get(username=name))
        for name in ("alice", "bob")
    }
    shared = Note.objects.create(title="x", shared=True)
    own = {name: f"note://{note.pk}" for name, note in notes.items()}
    every = [*own.values(), f"note://{shared.pk}", "note://999999"]
    batch = [
        asked(alice, *every),
        asked(bob, *every),
        asked(alice, own["alice"]),
        asked(alice, own["bob"]),
        asked(nobody, *every),
        asked("mcp_wrong", *every),
        asked(None, *every),
        asked(bob),
    ]
    # The tokens with all that they stand for, the first use, and what Alice and Bob may see.
    with django_assert_num_queries(4):
        decisions = endpoint._decide(batch)
    rows = [decision.rows if isinstance(decision, Admitted) else decision.status for decision in decisions]
    assert rows == [
        {own["alice"], every[2]},
        {own["bob"], every[2]},
        {own["alice"]},
        set(),
        set(),
        401,
        401,
        set(),
    ]
    assert decisions[7].caller.principal.name == "bob"


def test_tokens_of_one_principal_are_authorised_by_their_own_scopes(endpoint):
    full = token("alice")
    principal = Principal.objects.get()
    _, narrow = AccessToken.objects.issue(principal, scopes=[])
    note = Note.objects.create(title="x", shared=True)
    uri = f"note://{note.pk}"
    first, second = endpoint._decide([asked(full, uri), asked(narrow, uri)])
    assert (first.rows, second.rows) == ({uri}, set())


def test_very_many_uris_are_asked_for_in_portions(endpoint, django_assert_num_queries):
    value = token("alice")
    Note.objects.bulk_create([Note(pk=pk, title="x", shared=True) for pk in range(1, 2501)])
    batch = [asked(value, *(f"note://{pk}" for pk in range(start, start + 1000))) for start in (1, 1001, 2001)]
    with django_assert_num_queries(5):
        decisions = endpoint._decide(batch)
    assert [len(decision.rows) for decision in decisions] == [1000, 1000, 500]


def test_a_database_that_fails_is_the_answer_to_those_who_needed_it(endpoint, monkeypatch):
    value = token("alice")

    def broken(*args, **kwargs):
        raise OperationalError("gone")

    monkeypatch.setattr(authorize, "readable", broken)
    listening, calling, refused = endpoint._decide([asked(value, "note://1"), asked(value), asked(None)])
    assert isinstance(listening, OperationalError)
    assert isinstance(calling, Admitted)
    assert isinstance(refused, Refusal)
