import base64

import pytest
from django.contrib.auth import get_user_model

from example_project.notes.mcp import NoteResource, SharedNoteResource
from example_project.notes.models import Note, Tag
from mcp_channels.auth.principals import Caller
from mcp_channels.models import Principal
from mcp_channels.resources import listing
from tests.resources.test_model import Tags

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller():
    user = get_user_model().objects.create(username="alice")
    return Caller(Principal.objects.create(name="alice", user=user), frozenset({"notes:read"}))


def walk(resources, caller, limit):
    """
    All pages, one after the other.
    """
    pages, cursor = [], None
    while True:
        rows, cursor = listing.page(resources, caller, cursor, limit=limit)
        pages.append([row.uri for row in rows])
        if cursor is None:
            return pages


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
def test_pages_of_several_resources_hold_each_row_once(caller, limit):
    notes = [Note.objects.create(title=str(number), shared=True) for number in range(5)]
    tags = [Tag.objects.create(name=f"t{number}") for number in range(4)]
    resources = [NoteResource(Note), Tags(Tag)]
    pages = walk(resources, caller, limit)
    assert [uri for page in pages for uri in page] == [f"note://{note.pk}" for note in notes] + [
        f"tag://{tag.name}" for tag in tags
    ]
    assert all(len(page) <= limit for page in pages)


def test_rows_that_come_and_go_between_pages_disturb_nothing(caller):
    notes = [Note.objects.create(title=str(number), shared=True) for number in range(4)]
    resources = [NoteResource(Note)]
    first, cursor = listing.page(resources, caller, None, limit=2)
    notes[0].delete()
    notes[1].delete()
    rest, end = listing.page(resources, caller, cursor, limit=10)
    assert [row.uri for row in rest] == [f"note://{note.pk}" for note in notes[2:]]
    assert end is None
    assert len(first) == 2


def test_without_resources_there_is_one_empty_page(caller):
    assert listing.page([], caller, None, limit=10) == ([], None)
    assert listing.page([NoteResource(Note)], caller, None, limit=10) == ([], None)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "ü",
        "====",
        *(
            base64.urlsafe_b64encode(text.encode()).decode()
            for text in ("", "null", "[]", "[0]", "[1, null]", "[-1, null]", "[true, null]", "[0, 7]", '[0, "x"]', "{}")
        ),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    ],
)
def test_a_cursor_that_was_never_given_out_is_refused(caller, cursor):
    with pytest.raises(ValueError):
        listing.page([NoteResource(Note)], caller, cursor, limit=10)


def test_templates_are_those_that_the_caller_may_know_of(caller):
    resources = [NoteResource(Note), SharedNoteResource(Note)]
    assert len(listing.templates(resources, caller)) == 2
    stranger = Caller(caller.principal, frozenset())
    [template] = listing.templates(resources, stranger)
    assert template.description == "A shared note"
    assert template.uri_template == "note://{pk}"
