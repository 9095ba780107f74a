"""
Who may use the API: Django's model permissions, asked for reading too.
"""

from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework.permissions import BasePermission, DjangoModelPermissions
from rest_framework.request import Request

from mcp_channels.models import AccessToken

NOTIFY = "mcp_channels.notify"
"""The permission to publish notifications."""


class NotNarrowed(BasePermission):
    """
    Refuses tokens that are narrowed to some scopes: the API has no scopes, and would give them all that their user may
    do.
    """

    message = _("A token that is narrowed to scopes can't be used here.")

    def has_permission(self, request: Request, view: Any) -> bool:
        """
        See BasePermission.
        """
        return not (isinstance(request.auth, AccessToken) and request.auth.is_narrowed)


class ModelPermissions(DjangoModelPermissions):
    """
    ``view_…`` for reading, ``add_…``, ``change_…`` and ``delete_…`` for the rest. A view's ``action_permissions`` name
    what actions of its own need.
    """

    perms_map = {
        "GET": ["%(app_label)s.view_%(model_name)s"],
        "HEAD": ["%(app_label)s.view_%(model_name)s"],
        "OPTIONS": ["%(app_label)s.view_%(model_name)s"],
        "POST": ["%(app_label)s.add_%(model_name)s"],
        "PUT": ["%(app_label)s.change_%(model_name)s"],
        "PATCH": ["%(app_label)s.change_%(model_name)s"],
        "DELETE": ["%(app_label)s.delete_%(model_name)s"],
    }

    def has_permission(self, request: Request, view: Any) -> bool:
        """
        See BasePermission.
        """
        needed = getattr(view, "action_permissions", {}).get(view.action)
        if needed is None:
            return super().has_permission(request, view)
        return _has(request, needed)


class MayNotify(BasePermission):
    """
    Asks for ``mcp_channels.notify``.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        """
        See BasePermission.
        """
        return _has(request, NOTIFY)


def _has(request: Request, permission: str) -> bool:
    user = request.user
    return bool(user and user.is_authenticated and user.has_perm(permission))
