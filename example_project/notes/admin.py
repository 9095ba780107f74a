"""
Notes in the admin.
"""

from django.contrib import admin

from example_project.notes.models import Note, Tag

admin.site.register(Tag)


@admin.register(Note)
class NoteAdmin(admin.ModelAdmin):
    """
    Saving here notifies every client that listens.
    """

    list_display = ("title", "owner", "shared")
    list_filter = ("shared", "tags")
    search_fields = ("title", "body")
