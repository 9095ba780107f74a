"""
Model resources: the one rule of who may list, read and subscribe.
"""

import json

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from rest_framework.permissions import BasePermission, DjangoModelPermissions

from example_project.notes.mcp import NoteResource
from example_project.notes.models import Note, Tag
from example_project.notes.serializers import NoteSerializer
from mcp_channels import ModelResource
from mcp_channels.auth.principals import Caller
from mcp_channels.models import AccessToken, Principal
from mcp_channels.resources import authorize

pytestmark = pytest.mark.django_db


@pytest.fixture
def user():
    return get_user_model().objects.create(username="alice")


@pytest.fixture
def caller(user):
    return Caller(Principal.objects.create(name="alice", user=user), frozenset({"notes:read"}))


@pytest.fixture
def notes(user):
    other = get_user_model().objects.create(username="bob")
    return [
        Note.objects.create(title="mine", owner=user),
        Note.objects.create(title="shared", owner=other, shared=True),
        Note.objects.create(title="hidden", owner=other),
    ]


class Tags(ModelResource):
    uri = "tag://{name}"

    def get_content(self, instance, caller):
        return instance.name


def test_read_and_subscribe_see_the_same(caller, notes):
    resource = NoteResource(Note)
    uris = [f"note://{note.pk}" for note in notes] + ["note://999"]
    assert resource.readable(caller, uris) == set(uris[:2])
    assert [resource.find(caller, uri) for uri in uris] == [notes[0], notes[1], None, None]
    assert resource.page(caller, after=None, limit=10) == (notes[:2], None)


def test_without_the_scope_there_is_nothing_and_no_query(notes, caller, django_assert_num_queries):
    stranger = Caller(caller.principal, frozenset())
    resource = NoteResource(Note)
    with django_assert_num_queries(0):
        assert resource.readable(stranger, [f"note://{note.pk}" for note in notes]) == set()
        assert resource.find(stranger, f"note://{notes[0].pk}") is None
        assert resource.page(stranger, after=None, limit=10) == ([], None)
        assert not resource.is_offered(stranger)


def test_a_thousand_uris_are_one_query(caller, notes, django_assert_num_queries):
    uris = [f"note://{number}" for number in range(1000)]
    with django_assert_num_queries(1):
        assert authorize.readable([NoteResource(Note)], caller, uris) == {f"note://{note.pk}" for note in notes[:2]}


@pytest.mark.parametrize(
    "uri",
    [
        "note://01",
        "note://+1",
        "note:// 1",
        "note://1 ",
        "note://1.0",
        "note://1e0",
        "note://١",
        "note://%31",
        "note://0x1",
        "note://1_0",
        "note://True",
        "note://",
        "note://-1",
        "note://" + "9" * 25,
        "note://" + "9" * 9000,
        "note://1/",
        "NOTE://1",
        "note://1\x00",
        "note://%00",
        "note://\ud800",
        "note://%ED%A0%80",
        "",
    ],
)
def test_a_row_answers_to_one_spelling_of_its_uri(caller, uri):
    for pk in (1, 10):
        Note.objects.create(pk=pk, title="x", shared=True)
    resource = NoteResource(Note)
    assert resource.readable(caller, [uri, "note://1"]) == {"note://1"}
    assert resource.find(caller, uri) is None


@pytest.mark.parametrize("name", ["a b", "ü", "a/b?c#d", "100%", "\U0001f600", "a\nb", "'\"<>&", "x" * 50])
def test_a_lookup_of_any_text_round_trips(caller, name):
    tag = Tag.objects.create(name=name)
    resource = Tags(Tag)
    uri = resource.uri_of(tag)
    assert uri.isascii()
    assert resource.readable(caller, [uri]) == {uri}
    assert resource.find(caller, uri) == tag
    assert resource.uris_of(Tag.objects.all()) == [uri]


def test_several_variables_name_one_row_together(caller, user, notes):
    class Owned(NoteResource):
        uri = "notes://{owner__username}/{pk}"

    resource = Owned(Note)
    uris = [f"notes://{owner}/{note.pk}" for owner in ("alice", "bob", "carol") for note in notes]
    right = {f"notes://alice/{notes[0].pk}", f"notes://bob/{notes[1].pk}"}
    assert resource.readable(caller, uris) == right
    assert {uri for uri in uris if resource.find(caller, uri)} == right
    assert resource.uri_of(notes[0]) == f"notes://alice/{notes[0].pk}"


def test_permissions_are_asked_for_each_object_as_for_a_get(caller, notes):
    asked = []

    class OwnOnly(BasePermission):
        def has_permission(self, request, view):
            asked.append(request.method)
            return request.user == caller.principal.user

        def has_object_permission(self, request, view, obj):
            return obj.owner == request.user

    class Guarded(NoteResource):
        permission_classes = (OwnOnly,)

    request = HttpRequest()
    request.method, request.user = "POST", caller.principal.user
    asking = Caller(caller.principal, caller.scopes, request=request)
    resource = Guarded(Note)
    uris = [f"note://{note.pk}" for note in notes]
    assert resource.readable(asking, uris) == {uris[0]}
    assert resource.find(asking, uris[1]) is None
    assert resource.page(asking, after=None, limit=10) == ([notes[0]], None)
    assert set(asked) == {"GET"}
    assert request.method == "POST"


def test_a_permission_that_refuses_refuses_all(caller, notes):
    class Guarded(NoteResource):
        permission_classes = (DjangoModelPermissions,)

    # DjangoModelPermissions lets every signed-in user read, and nobody else.
    uris = [f"note://{notes[1].pk}"]
    assert Guarded(Note).readable(caller, uris) == set(uris)
    service = Caller(Principal.objects.create(name="service"), frozenset({"notes:read"}))
    assert Guarded(Note).readable(service, uris) == set()


def test_a_rule_that_raises_lets_nobody_in_and_hides_nothing_else(caller, notes, caplog):
    class Broken(NoteResource):
        def get_queryset(self, principal):
            raise RuntimeError("mine")

    uris = [f"note://{note.pk}" for note in notes]
    assert authorize.readable([Broken(Note)], caller, uris) == set()
    assert authorize.readable([Broken(Note), NoteResource(Note)], caller, uris) == set(uris[:2])
    assert "The rule of Broken failed" in caplog.text


def test_pages_follow_each_other_and_end(caller):
    rows = [Note.objects.create(title=str(number), shared=True) for number in range(5)]
    resource = NoteResource(Note)
    first, after = resource.page(caller, after=None, limit=2)
    second, after_second = resource.page(caller, after=after, limit=2)
    third, end = resource.page(caller, after=after_second, limit=2)
    assert [*first, *second, *third] == rows
    assert end is None


@pytest.mark.parametrize("after", ["x", "", "\0", "9" * 30])
def test_a_key_that_is_none_is_refused(caller, after):
    with pytest.raises(ValueError):
        NoteResource(Note).page(caller, after=after, limit=2)


def test_the_content_is_the_serializers_json(caller, notes):
    notes[0].tags.add(Tag.objects.create(name="t"))
    content = NoteResource(Note).get_content(notes[0], caller)
    assert json.loads(content) == {"id": notes[0].pk, "title": "mine", "body": "", "shared": False, "tags": ["t"]}


@pytest.mark.parametrize(
    "declaration",
    [
        {},
        {"uri": "note://fixed", "serializer_class": NoteSerializer},
        {"uri": "note://{", "serializer_class": NoteSerializer},
        {"uri": "note://{nothing}", "serializer_class": NoteSerializer},
        {"uri": "note://{owner__nothing}", "serializer_class": NoteSerializer},
        {"uri": "note://{pk}"},
    ],
)
def test_a_declaration_that_cannot_work_is_refused(declaration):
    with pytest.raises(ImproperlyConfigured):
        type("Broken", (ModelResource,), declaration)(Note)


def test_a_key_of_another_type_is_found():
    issued, _ = AccessToken.objects.issue(Principal.objects.create(name="p"))

    class Tokens(ModelResource):
        uri = "token://{principal}/{prefix}"

        def get_content(self, instance, caller):
            return ""

    resource = Tokens(AccessToken)
    uri = resource.uri_of(issued)
    assert uri == f"token://{issued.principal_id}/{issued.prefix}"
    assert resource.readable(Caller(issued.principal, frozenset()), [uri]) == {uri}
