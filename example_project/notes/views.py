"""
The example project's page.
"""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from example_project.notes.models import Note


def index(request: HttpRequest) -> HttpResponse:
    """
    The shared notes.
    """
    notes = Note.objects.filter(shared=True).prefetch_related("tags").order_by("pk")
    return render(request, "notes/index.html", {"notes": notes})
