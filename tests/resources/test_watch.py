"""
What changes of models publish.
"""

import pytest
from django.apps import apps
from django.core import serializers
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models.deletion import Collector

from example_project.notes.models import Note, Tag
from mcp_channels import ModelResource, notify_objects, topics
from mcp_channels.models import Scope
from mcp_channels.publisher import publisher
from mcp_channels.resources import watch

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def left(monkeypatch):
    """
    The topics that were published, as URIs and names, in order.
    """
    published = []
    monkeypatch.setattr(publisher, "publish", lambda changed: published.extend(t.key or t.kind for t in changed))
    return published


@pytest.fixture
def note(left):
    note = Note.objects.create(title="x")
    left.clear()
    return note


def test_a_new_row_is_told_with_the_list(left):
    note = Note.objects.create(title="x")
    assert left == [f"note://{note.pk}", "resources"]


def test_a_changed_row_is_told_alone(left, note):
    note.save()
    assert left == [f"note://{note.pk}"]


def test_a_deleted_row_is_told_with_the_list(left, note):
    uri = f"note://{note.pk}"
    note.delete()
    assert left == [uri, "resources"]


def test_a_deleted_queryset_is_told_row_by_row(left, note):
    uri = f"note://{note.pk}"
    other = Note.objects.create(title="y")
    left.clear()
    Note.objects.all().delete()
    assert set(left) == {uri, f"note://{other.pk}", "resources"}


def test_a_row_is_told_once_for_each_transaction(left, note):
    with transaction.atomic():
        for _ in range(100):
            note.save()
        Note.objects.create(title="y")
        Note.objects.create(title="z")
    assert left.count(f"note://{note.pk}") == 1
    assert left.count("resources") == 1


def test_a_rollback_tells_nothing(left, note):
    with pytest.raises(RuntimeError), transaction.atomic():
        note.save()
        Note.objects.create(title="y")
        note.tags.add(Tag.objects.create(name="t"))
        raise RuntimeError
    assert left == []


def test_tags_that_come_or_go_change_the_row(left, note):
    tag = Tag.objects.create(name="t")
    other = Tag.objects.create(name="u")
    left.clear()
    for change in (
        lambda: note.tags.add(tag),
        lambda: note.tags.remove(tag),
        lambda: note.tags.set([tag, other]),
        lambda: note.tags.clear(),
    ):
        change()
        assert set(left) == {f"note://{note.pk}"}, change
        left.clear()


def test_tags_changed_from_their_side_change_the_rows(left, note):
    tag = Tag.objects.create(name="t")
    left.clear()
    for change in (
        lambda: tag.note_set.add(note),
        lambda: tag.note_set.remove(note),
        lambda: tag.note_set.set([note]),
        lambda: tag.note_set.clear(),
    ):
        change()
        assert set(left) == {f"note://{note.pk}"}, change
        left.clear()


def test_a_related_row_that_changes_changes_the_row(left, note):
    tag = Tag.objects.create(name="t")
    note.tags.add(tag)
    left.clear()
    tag.save()
    assert left == [f"note://{note.pk}"]
    left.clear()
    tag.delete()
    assert f"note://{note.pk}" in left


def test_fixtures_tell_nothing(left, note, tmp_path):
    tag = Tag.objects.create(name="t")
    note.tags.add(tag)
    fixture = tmp_path / "notes.json"
    # The rows' tags come later in the file than the rows.
    fixture.write_text(serializers.serialize("json", [note, tag]))
    Note.objects.all().delete()
    Tag.objects.all().delete()
    left.clear()
    call_command("loaddata", str(fixture), verbosity=0)
    assert Note.objects.get().tags.get() == tag
    assert left == []


def test_update_tells_of_its_rows(left, note):
    other = Note.objects.create(title="y", shared=True)
    left.clear()
    assert Note.objects.filter(shared=True).update(title="z") == 1
    assert left == [f"note://{other.pk}"]


def test_update_tells_of_rows_that_no_longer_match(left, note):
    assert Note.objects.filter(title="x").update(title="z") == 1
    assert left == [f"note://{note.pk}"]


def test_bulk_methods_tell_of_their_rows(left):
    rows = Note.objects.bulk_create([Note(title="a"), Note(title="b")])
    uris = {f"note://{row.pk}" for row in rows}
    assert set(left) == {*uris, "resources"}
    left.clear()
    for row in rows:
        row.title += "!"
    Note.objects.bulk_update(rows, ["title"])
    assert set(left) == uris


def test_a_rolled_back_update_tells_nothing(left, note):
    with pytest.raises(RuntimeError), transaction.atomic():
        Note.objects.update(title="z")
        raise RuntimeError
    assert left == []


def test_raw_sql_is_told_by_hand(left, note):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE notes_note SET title = 'raw'")
    assert left == []
    notify_objects(Note.objects.all())
    assert left == [f"note://{note.pk}"]
    left.clear()
    notify_objects([note], listed=True)
    assert left == [f"note://{note.pk}", "resources"]


def test_a_uri_that_moves_is_told_under_both_names(left, monkeypatch):
    class ByName(ModelResource):
        uri = "scope://{name}"

        def get_content(self, instance, caller):
            return instance.name

    monkeypatch.setattr(watch, "_watched", {})
    watch.watch(ByName(Scope))
    scope = Scope.objects.create(name="old")
    left.clear()
    scope.name = "new"
    scope.save()
    assert set(left) == {"scope://old", "scope://new", "resources"}
    left.clear()
    scope.description = "x"
    scope.save()
    assert left == ["scope://new"]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_row_of_another_database_waits_for_its_own_commit(left):
    with transaction.atomic("other"):
        note = Note(title="x")
        note.save(using="other")
        assert left == []
    assert left == [f"note://{note.pk}", "resources"]
    left.clear()
    with pytest.raises(RuntimeError), transaction.atomic("default"):
        note.save(using="other")
        raise RuntimeError
    assert left == [f"note://{note.pk}"]
    left.clear()
    with pytest.raises(RuntimeError), transaction.atomic("other"):
        note.save(using="other")
        raise RuntimeError
    assert left == []
    Note.objects.using("other").filter(pk=note.pk).update(title="y")
    assert left == [f"note://{note.pk}"]


def test_trouble_with_a_notification_does_not_break_the_save(left, note, monkeypatch, caplog):
    def broken(self, instance):
        raise RuntimeError("mine")

    monkeypatch.setattr(ModelResource, "uri_of", broken)
    note.title = "saved"
    note.save()
    note.tags.add(Tag.objects.create(name="t"))
    Note.objects.create(title="new")
    note.delete()
    assert Note.objects.get().title == "new"
    assert "A change could not be notified of" in caplog.text


def test_an_update_of_very_many_rows_says_that_anything_may_have_changed(left):
    Note.objects.bulk_create([Note(title="x") for _ in range(10_001)])
    left.clear()
    assert Note.objects.update(title="y") == 10_001
    assert left == ["everything"]


def test_an_update_of_many_rows_names_each(left):
    rows = Note.objects.bulk_create([Note(title="x") for _ in range(1_200)])
    left.clear()
    Note.objects.update(title="y")
    assert set(left) == {f"note://{row.pk}" for row in rows}


def test_a_row_saved_through_its_concrete_model_is_told_as_its_proxys(left, monkeypatch):
    class ProxyScope(Scope):
        class Meta:
            proxy = True
            app_label = "notes"

    class Proxied(ModelResource):
        uri = "proxied://{pk}"

        def get_content(self, instance, caller):
            return instance.name

    monkeypatch.setattr(watch, "_watched", {})
    watch.watch(Proxied(ProxyScope))
    scope = Scope.objects.create(name="a")
    assert left == [f"proxied://{scope.pk}", "resources"]
    left.clear()
    ProxyScope.objects.get(pk=scope.pk).save()
    assert left == [f"proxied://{scope.pk}"]


class Replicas:
    """
    Reads go elsewhere than writes.
    """

    def db_for_read(self, model, **hints):
        return "other"

    def db_for_write(self, model, **hints):
        return "default"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_where_reads_go_to_a_replica_the_commit_of_the_write_counts(left, settings):
    note = Note.objects.create(title="x")
    left.clear()
    settings.DATABASE_ROUTERS = [Replicas()]
    with transaction.atomic("default"):
        notify_objects(Note.objects.filter(pk=note.pk))
        assert Note.objects.filter(pk=note.pk).update(title="y") == 1
        assert left == []
    assert left == [f"note://{note.pk}"]


def test_models_that_are_not_registered_keep_their_fast_deletes():
    user = apps.get_model("admin", "LogEntry")
    assert Collector(using="default").can_fast_delete(user.objects.all())


def test_topics_are_what_the_uri_says():
    assert topics.resource("note://1").key == "note://1"
