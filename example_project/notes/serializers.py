"""
A note as its readers get it.
"""

from rest_framework import serializers

from example_project.notes.models import Note


class NoteSerializer(serializers.ModelSerializer):
    """
    A note with its tags' names.
    """

    tags = serializers.SlugRelatedField("name", many=True, read_only=True)

    class Meta:
        model = Note
        fields = ("id", "title", "body", "shared", "tags")
