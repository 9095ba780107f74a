"""
A note, and its tags.
"""

from django.conf import settings
from django.db import models

from mcp_channels import NotifyingQuerySet


class Tag(models.Model):
    """
    A word that notes are found by.
    """

    name = models.CharField(max_length=50, unique=True)

    def __str__(self) -> str:
        return self.name


class Note(models.Model):
    """
    A note. One that isn't shared is its owner's alone.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, blank=True)
    title = models.CharField(max_length=200)
    body = models.TextField(blank=True)
    shared = models.BooleanField(default=False)
    tags = models.ManyToManyField(Tag, blank=True)

    # So that update() and bulk_create() notify too.
    objects = NotifyingQuerySet.as_manager()

    def __str__(self) -> str:
        return self.title
