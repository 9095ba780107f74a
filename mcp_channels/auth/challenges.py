"""
What tells a client how to be let in: ``WWW-Authenticate`` (RFC 6750 §3), and the URLs of RFC 9728.
"""

import re
from collections.abc import Iterable
from typing import Final

from django.http import HttpRequest
from django.utils.encoding import escape_uri_path

REALM: Final = "mcp"

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
"""Where the metadata of a protected resource are, before the resource's own path (RFC 9728 §3.1)."""

SCOPE_NAME: Final = re.compile(r"[\x21\x23-\x5B\x5D-\x7E]+")
"""What a scope's name may be where OAuth carries it (RFC 6749 §3.3)."""


def bearer_challenge(
    *,
    error: str | None = None,
    scopes: Iterable[str] = (),
    resource_metadata: str | None = None,
) -> str:
    """
    A challenge to show a bearer token.

    Args:
        error: a code of RFC 6750 §3.1; None where the client showed nothing.
        scopes: names of the scopes that the request needs.
        resource_metadata: the URL of the resource's metadata (RFC 9728 §5.1).
    """
    parameters = {
        "realm": REALM,
        "error": error,
        "scope": " ".join(scopes),
        "resource_metadata": resource_metadata,
    }
    return "Bearer " + ", ".join(f"{name}={_quoted(value)}" for name, value in parameters.items() if value)


def resource_url(request: HttpRequest, path: str | None = None) -> str:
    """
    The absolute URL of ``path``, or of what is asked for, as the client wrote scheme and host, without the query.

    Raises:
        DisallowedHost: Django doesn't serve this host (``ALLOWED_HOSTS``).
    """
    # request.build_absolute_uri() would take a path that starts with two slashes for a host.
    return f"{request.scheme}://{request.get_host()}{escape_uri_path(request.path if path is None else path)}"


def metadata_url(request: HttpRequest) -> str:
    """
    The absolute URL of the metadata of the endpoint that is asked for. Below a prefix that the server takes off
    (``root_path``), it is below the prefix too.
    """
    prefix = request.path.removesuffix(request.path_info)
    own = request.path.removeprefix(prefix)
    return resource_url(request, f"{prefix}{WELL_KNOWN}{'' if own == '/' else own}")


def _quoted(text: str) -> str:
    """
    A quoted-string (RFC 9110 §5.6.4); what a header can't carry becomes a question mark.
    """
    plain = "".join(character if " " <= character <= "~" else "?" for character in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
