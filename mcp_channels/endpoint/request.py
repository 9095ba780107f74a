"""
A request as it comes in: its headers, its body, and the listen request in it.

Envelope and headers are judged by the SDK's own functions, so that both paths of the endpoint judge alike.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import mcp_types as types
from asgiref.typing import ASGIReceiveCallable, HTTPScope
from django.contrib.auth import get_user
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_METHOD_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types.jsonrpc import JSONRPCRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_channels.listen.filter import Filter, FilterError, parse

LISTEN: Final = "subscriptions/listen"
CALL: Final = "tools/call"
TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
SESSION_HEADER: Final = "mcp-session-id"

NO_CREDENTIALS: Final = frozenset(
    {b"accept", b"accept-encoding", b"accept-language", b"connection", b"content-length", b"content-type"}
    | {b"mcp-method", b"mcp-protocol-version", b"user-agent"}
)
"""Headers that are not kept for as long as a stream is open."""

RETRY_AFTER: Final = 5
"""Seconds after which a client that was answered 503 may come back."""


class Refusal(Exception):  # noqa: N818  # an answer, not a fault
    """
    The request is answered with a JSON-RPC error and no stream.
    """

    def __init__(
        self,
        status: int,
        code: int | None,
        message: str = "",
        *,
        request_id: str | int | None = None,
        data: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.request_id = request_id
        self.data = data
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """
        The JSON-RPC error; empty where HTTP says it all.
        """
        if self.code is None:
            return b""
        error: dict[str, object] = {"code": self.code, "message": str(self)}
        if self.data is not None:
            error["data"] = self.data
        return json.dumps({"jsonrpc": "2.0", "id": self.request_id, "error": error}, separators=(",", ":")).encode()


def failure(error: Exception) -> Refusal:
    """
    What a client is told of an error that nobody expected: nothing of it, as it may show a secret.
    """
    if isinstance(error, (DatabaseError, InterfaceError)):
        retry = {"Retry-After": str(RETRY_AFTER)}
        return Refusal(503, types.INTERNAL_ERROR, "The database is not available", headers=retry)
    return Refusal(500, types.INTERNAL_ERROR, "Internal error")


class ClientGoneError(Exception):
    """
    The client left before its request was whole.
    """


@dataclass(frozen=True, slots=True)
class ListenRequest:
    """
    A listen request that is well formed; nothing is authorised yet.
    """

    id: str | int
    """The JSON-RPC id."""

    filter: Filter
    """The filter as asked for."""

    client_info: Mapping[str, Any] = field(default_factory=dict)
    """What the client says of itself."""


def cleaned(scope: HTTPScope) -> HTTPScope:
    """
    The scope with no white space around header values (RFC 9110 §5.5); some servers leave it.
    """
    return {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}


def header(scope: HTTPScope, name: str) -> str | None:
    """
    The first value of a header, or None.
    """
    wanted = name.encode("ascii")
    for key, value in scope["headers"]:
        if key == wanted:
            return value.decode("latin-1")
    return None


def django_request(scope: HTTPScope) -> HttpRequest:
    """
    The request as Django sees it, without its body.

    Raises:
        Refusal: Django doesn't serve this host (``ALLOWED_HOSTS``).
    """
    entries: dict[str, Any] = dict(scope)
    request = ASGIRequest(entries, io.BytesIO())
    check_host(request)
    # What Channels' middleware found, for DRF's session authentication.
    for name in ("user", "session"):
        if name in entries:
            setattr(request, name, entries[name])
    return request


class Credentials:
    """
    What a request brought to say who is calling, to be looked at again while its stream is open.
    """

    __slots__ = ("_scope", "_session")

    def __init__(self, scope: HTTPScope) -> None:
        kept = ("type", "method", "path", "root_path", "scheme", "client", "server", "query_string")
        entries: dict[str, Any] = dict(scope)
        self._scope: dict[str, Any] = {name: entries[name] for name in kept if name in entries}
        self._scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in NO_CREDENTIALS]
        self._session = entries.get("session")

    def request(self) -> HttpRequest:
        """
        A request with these credentials, and a session that is read anew.
        """
        request = ASGIRequest(dict(self._scope), io.BytesIO())
        if self._session is not None:
            session = self._session.__class__(self._session.session_key)
            request.session = session
            request.user = SimpleLazyObject(lambda: get_user(request))  # type: ignore[assignment]  # as Django does
        return request


def check_host(request: HttpRequest) -> None:
    """
    Check ``Host`` against ``ALLOWED_HOSTS``.

    Raises:
        Refusal: it isn't there.
    """
    try:
        request.get_host()
    except DisallowedHost:
        raise Refusal(400, types.INVALID_REQUEST, "Invalid Host header") from None


def check_origin(request: HttpRequest, allowed: tuple[str, ...]) -> str | None:
    """
    The request's ``Origin`` if it is another than the endpoint's own and allowed; None if there is none to speak of.

    Raises:
        Refusal: 403 (MCP 2026-07-28 basic/transports/streamable-http, "Security & Endpoint").
    """
    origin = request.headers.get("Origin")
    host = request.get_host().removesuffix(":443" if request.scheme == "https" else ":80")
    if origin is None or origin == f"{request.scheme}://{host}":
        return None
    if origin in allowed:
        return origin
    raise Refusal(403, types.INVALID_REQUEST, "Invalid Origin header")


def may_be_listen(scope: HTTPScope) -> bool:
    """
    Whether the body must be read to know if this is a listen request. A header that names another method settles it:
    if the body disagrees, the SDK rejects the request.
    """
    return header(scope, MCP_METHOD_HEADER) in (None, LISTEN)


async def read_body(scope: HTTPScope, receive: ASGIReceiveCallable, limit: int) -> bytes:
    """
    The whole body.

    Raises:
        Refusal: it is longer than ``limit`` bytes.
        ClientGoneError: the client left.
    """
    declared = header(scope, "content-length")
    if declared is not None and declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def read_listen(scope: HTTPScope, body: bytes, *, max_entries: int) -> ListenRequest | None:
    """
    The listen request in ``body``, or None if it is something else, for the SDK to answer.

    Raises:
        Refusal: it is a listen request that can't be served, or no JSON at all.
    """
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        if header(scope, MCP_METHOD_HEADER) == LISTEN:
            raise Refusal(400, types.PARSE_ERROR, "Parse error") from None
        return None
    if not isinstance(decoded, dict) or decoded.get("method") != LISTEN:
        return None
    try:
        envelope = JSONRPCRequest.model_validate(decoded)
    except ValidationError:
        raise Refusal(400, types.INVALID_REQUEST, "Body must be a single JSON-RPC request object") from None
    _check_era(scope, decoded, envelope.id)
    _check_accept(scope, envelope.id)
    _check_headers(scope, decoded, envelope.id)
    params = decoded["params"]
    meta = params["_meta"]
    capabilities = meta[types.CLIENT_CAPABILITIES_META_KEY]
    client_info = meta.get(types.CLIENT_INFO_META_KEY)
    if not isinstance(capabilities, dict) or not isinstance(client_info, (dict, type(None))):
        raise Refusal(400, types.INVALID_PARAMS, "params._meta is malformed", request_id=envelope.id)
    try:
        asked = parse(params, max_entries=max_entries)
    except FilterError as error:
        raise Refusal(400, types.INVALID_PARAMS, str(error), request_id=envelope.id) from None
    if asked.task_ids:
        _check_tasks(capabilities, envelope.id)
    return ListenRequest(envelope.id, asked, client_info or {})


def is_call(body: bytes) -> bool:
    """
    Whether a body calls a tool, alone or in a batch.
    """
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return False
    messages = decoded if isinstance(decoded, list) else [decoded]
    return any(isinstance(message, dict) and message.get("method") == CALL for message in messages)


def _check_era(scope: HTTPScope, decoded: Mapping[str, Any], request_id: str | int) -> None:
    version = header(scope, MCP_PROTOCOL_VERSION_HEADER)
    params = decoded.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    enveloped = isinstance(meta, dict) and types.PROTOCOL_VERSION_META_KEY in meta
    if not enveloped and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS):
        raise Refusal(
            ERROR_CODE_HTTP_STATUS[types.METHOD_NOT_FOUND],
            types.METHOD_NOT_FOUND,
            "Method not found",
            request_id=request_id,
            data=LISTEN,
        )


def _check_accept(scope: HTTPScope, request_id: str | int) -> None:
    content_type = header(scope, "content-type") or ""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Refusal(400, types.INVALID_REQUEST, "Content-Type must be application/json", request_id=request_id)
    accepted = [
        part.partition(";")[0].strip().lower()
        for name, value in scope["headers"]
        if name == b"accept"
        for part in value.decode("latin-1").split(",")
    ]
    if not {"text/event-stream", "text/*", "*/*"}.intersection(accepted):
        raise Refusal(406, types.INVALID_REQUEST, "Accept must name text/event-stream", request_id=request_id)


def _check_headers(scope: HTTPScope, decoded: Mapping[str, Any], request_id: str | int) -> None:
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    duplicated = find_duplicated_routing_header(pairs)
    if duplicated is not None:
        raise Refusal(400, types.HEADER_MISMATCH, f"{duplicated} header appears more than once", request_id=request_id)
    verdict = classify_inbound_request(decoded, headers=dict(pairs))
    if isinstance(verdict, InboundLadderRejection):
        status = ERROR_CODE_HTTP_STATUS.get(verdict.code, 400)
        raise Refusal(status, verdict.code, verdict.message, request_id=request_id, data=verdict.data)


def _check_tasks(capabilities: Mapping[str, Any], request_id: str | int) -> None:
    extensions = capabilities.get("extensions")
    if not isinstance(extensions, dict) or TASKS_EXTENSION not in extensions:
        raise Refusal(
            400,
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"taskIds needs the client capability {TASKS_EXTENSION}",
            request_id=request_id,
            data={"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
        )


def _too_large(limit: int) -> Refusal:
    # What is left of the body is not read, so the connection can't be used again.
    return Refusal(
        413, types.INVALID_REQUEST, f"The body is longer than {limit} bytes", headers={"Connection": "close"}
    )
