"""
What the admin's actions leave in its history.
"""

from collections.abc import Sequence
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.http import HttpRequest


def note(request: HttpRequest, rows: Sequence[Any], message: str) -> None:
    """
    Note what the user of a request did to these rows.
    """
    if rows and request.user.pk is not None:
        LogEntry.objects.log_actions(request.user.pk, rows, CHANGE, message)
