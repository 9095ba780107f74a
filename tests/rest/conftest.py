"""
People and services that call the API.
"""

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from rest_framework.test import APIClient

from mcp_channels.models import AccessToken, LiveStream, Node, Principal


@pytest.fixture
def make_user():
    """
    A function that makes a user with these permissions.
    """

    def make(name, *codenames, **fields):
        user = get_user_model().objects.create(username=name, **fields)
        permissions = Permission.objects.filter(content_type__app_label="mcp_channels", codename__in=codenames)
        assert permissions.count() == len(codenames)
        user.user_permissions.set(permissions)
        return user

    return make


@pytest.fixture
def client_of(make_user):
    """
    A function that makes a client that calls with the token of a user with these permissions.
    """

    def make(*codenames, name="caller", **fields):
        user = make_user(name, *codenames, **fields)
        principal = Principal.objects.create(name=f"principal of {name}", user=user)
        client = bearer(AccessToken.objects.issue(principal)[1])
        client.user = user
        return client

    return make


@pytest.fixture
def root(client_of):
    """
    A client of a superuser.
    """
    return client_of(name="root", is_superuser=True)


@pytest.fixture
def open_stream():
    """
    A function that makes the row of an open stream.
    """

    def make(principal=None, **fields):
        node, _ = Node.objects.get_or_create(id="a" * 32, defaults={"host": "web1", "pid": 17})
        fields = {"endpoint": "notes", "kinds": "toolsListChanged, resourceSubscriptions", "uri_count": 3, **fields}
        return LiveStream.objects.create(**{"principal": principal, "node": node, **fields})

    return make


def bearer(value):
    client = APIClient(headers={"Authorization": f"Bearer {value}"})
    client.default_format = "json"
    # What a view raises would come out of the call; a client of the real thing sees a 500.
    client.raise_request_exception = False
    return client
