"""
The admin as its users call it: through its URLs, in pytest's own process.
"""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from mcp_channels.models import AccessToken, LiveStream, Node, Principal, Scope

User = get_user_model()


class Admin:
    """
    One user at the admin, and the rows that the tests look at.
    """

    def __init__(self, user) -> None:
        self.client = Client()
        self.client.force_login(user)

    def get(self, path: str, **query):
        return self.client.get(f"/admin/mcp_channels/{path}", query)

    def text(self, path: str, **query) -> str:
        response = self.get(path, **query)
        assert response.status_code == 200, (response.status_code, response.headers)
        return response.content.decode()

    def post(self, path: str, data: dict):
        return self.client.post(f"/admin/mcp_channels/{path}", data)

    def form(self, path: str, **changes) -> dict:
        """
        What a browser would send of the form on a page, with some fields set; None takes one out.
        """
        response = self.get(path)
        assert response.status_code == 200
        data: dict = {}
        context = response.context
        forms = [context["adminform"].form, *(formset.formset for formset in context["inline_admin_formsets"])]
        for item in forms:
            data.update(sent(item))
        return {key: value for key, value in {**data, **changes}.items() if value is not None}

    def listed(self, path: str = "principal/", **query) -> dict:
        """
        What a browser would send of a list's form.
        """
        return {**sent(self.get(path, **query).context["cl"].formset), "_save": "Save"}

    def act(self, path: str, action: str, rows):
        return self.post(path, {"action": action, "_selected_action": [row.pk for row in rows], "index": 0})


def sent(form) -> dict:
    """
    The fields of a form or a form set as it is shown.
    """
    if hasattr(form, "management_form"):
        data = sent(form.management_form)
        for item in form.forms:
            data.update(sent(item))
        return data
    data = {}
    for field in form:
        value = field.value()
        widget = field.field.widget
        if field.field.show_hidden_initial:
            data[field.html_initial_name] = field.field.hidden_widget().format_value(value) or ""
        if field.field.disabled or value is False or value is None:
            continue
        if hasattr(widget, "decompress"):
            names = [f"{field.html_name}{suffix}" for suffix in widget.widgets_names]
            data.update(zip(names, ["" if part is None else part for part in widget.decompress(value)], strict=True))
        else:
            data[field.html_name] = "on" if value is True else value
    return data


@pytest.fixture
def admin(db) -> Admin:
    return Admin(User.objects.create_superuser("root", password="root"))


@pytest.fixture
def staff(db):
    """
    A function that logs in staff with these permissions alone.
    """

    def log_in(*permissions: str) -> Admin:
        user = User.objects.create_user(f"staff{User.objects.count()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return Admin(user)

    return log_in


@pytest.fixture
def make(db):
    """
    Functions that make rows.
    """
    return Maker()


class Maker:
    def principal(self, name: str = "alice", *scopes: str, **fields) -> Principal:
        principal = Principal.objects.create(name=name, **fields)
        principal.scopes.set(Scope.named(scopes))
        return principal

    def token(self, principal: Principal, label: str = "", **fields) -> AccessToken:
        return AccessToken.objects.issue(principal, label=label, **fields)[0]

    def node(self, name: str = "web", **fields) -> Node:
        return Node.objects.get_or_create(id=name, defaults={"host": name, "pid": 1, **fields})[0]

    def dead_node(self, name: str = "dead") -> Node:
        return self.node(name, seen_at=timezone.now() - timedelta(hours=1))

    def stream(self, principal: Principal | None, **fields) -> LiveStream:
        fields = {"endpoint": "notes", "node": self.node(), "kinds": "toolsListChanged", **fields}
        return LiveStream.objects.create(principal=principal, **fields)
