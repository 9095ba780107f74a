"""
Which of many rows a queryset has.
"""

import pytest
from django.db.models import F

from example_project.notes.models import Note
from mcp_channels.resources.visible import among

pytestmark = pytest.mark.django_db


@pytest.fixture
def keys():
    return [Note.objects.create(title=f"n{number}", body="b", shared=number % 2 == 0).pk for number in range(6)]


@pytest.mark.parametrize(
    "narrow",
    [
        lambda notes: notes.filter(shared=True),
        lambda notes: notes.filter(shared=True).order_by("-title"),
        lambda notes: notes.filter(shared=True).distinct(),
        lambda notes: notes.filter(shared=True, tags=None).select_related("owner"),
        lambda notes: notes.filter(shared=True).annotate(c0=F("title")),
        lambda notes: notes.filter(title__in=["n0", "n2"]) | notes.filter(title="n4"),
        lambda notes: notes.filter(title__in=["n0", "n2"]).union(notes.filter(title="n4")),
        lambda notes: notes.filter(title__contains="n").exclude(shared=False),
    ],
)
def test_the_rows_are_the_querysets(keys, narrow):
    asked = [(key,) for key in [*keys[:5], 999_999]]
    assert among(narrow(Note.objects.all()), ["pk"], asked) == {(key,) for key in keys[::2]}


def test_a_slice_is_taken_before_it_is_asked(keys):
    first = Note.objects.order_by("pk")[:2]
    assert among(first, ["pk"], [(key,) for key in keys]) == {(key,) for key in keys[:2]}


def test_a_queryset_of_nothing_asks_nothing(keys, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert among(Note.objects.none(), ["pk"], [(keys[0],)]) == set()


def test_texts_and_several_columns(keys):
    asked = [(keys[0], "n0"), (keys[1], "n0"), (keys[2], "%s")]
    found = among(Note.objects.filter(title__startswith="n"), ["pk", "title"], asked)
    assert (keys[0], "n0") in found
    assert not found & {(keys[1], "n0"), (keys[2], "%s")}


def test_querysets_that_say_the_same_share_a_query(keys, django_assert_num_queries):
    memory = {}
    asked = [(key,) for key in keys]
    with django_assert_num_queries(2):
        for shared in (True, True, False, True):
            found = among(Note.objects.filter(shared=shared), ["pk"], asked[:4], memory=memory)
            assert {row for row in found if row in asked} == {(key,) for key in (keys[:4:2] if shared else keys[1:4:2])}
    with django_assert_num_queries(1):
        found = among(Note.objects.filter(shared=True), ["pk"], asked, memory=memory)
    assert found == {(key,) for key in keys[::2]}
