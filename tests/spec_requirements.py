"""
What MCP 2026-07-28 asks of a server of ``subscriptions/listen``: one entry for each MUST and SHOULD that concerns one.

A test names the entries that it shows with ``@requirement("…")``; ``test_spec_requirements.py`` checks that each entry
has a test and that each name is an entry. The base of the places is ``docs/specification/2026-07-28`` of the
specification's repository.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

_TestT = TypeVar("_TestT", bound=Callable[..., object])

_SUBSCRIPTIONS = "basic/patterns/subscriptions"
_CANCELLATION = "basic/patterns/cancellation"
_HTTP = "basic/transports/streamable-http"
_AUTHORIZATION = "basic/authorization/index"
_DISCOVERY = "basic/authorization/authorization-server-discovery"
_RESOURCES = "server/resources"


class Requirement(NamedTuple):
    """
    Where the specification says it, and its sentence.
    """

    page: str
    section: str
    sentence: str


REQUIREMENTS = {
    "listen:only-requested": Requirement(
        _SUBSCRIPTIONS,
        "Opening a Stream",
        "The server MUST NOT send notification types the client has not explicitly requested.",
    ),
    "listen:ack-first": Requirement(
        _SUBSCRIPTIONS,
        "Acknowledgment",
        "The server MUST send notifications/subscriptions/acknowledged as the first message carrying the"
        " subscription's ID in _meta under io.modelcontextprotocol/subscriptionId",
    ),
    "listen:nothing-before-ack": Requirement(
        _SUBSCRIPTIONS, "Acknowledgment", "and MUST NOT send any notification on the subscription before it."
    ),
    "listen:teardown-result": Requirement(
        _SUBSCRIPTIONS,
        "Cancellation",
        "The server tears it down (e.g., during shutdown) — it SHOULD send a successful subscriptions/listen response"
        " to signal a graceful end, then close the stream.",
    ),
    "listen:graceful-closure": Requirement(
        _SUBSCRIPTIONS,
        "Graceful Closure",
        "When the server ends a subscription on its own initiative, it SHOULD respond to the original"
        " subscriptions/listen request with a completion result before closing the stream.",
    ),
    "cancel:teardown": Requirement(
        _CANCELLATION,
        "Cancellation",
        "A server MUST send notifications/cancelled referencing a subscriptions/listen request ID when it tears down"
        " that subscription stream.",
    ),
    "cancel:nothing-else": Requirement(
        _CANCELLATION, "Cancellation", "Servers MUST NOT send notifications/cancelled for any other purpose."
    ),
    "cancel:disconnect": Requirement(
        _CANCELLATION,
        "Transport-Specific Cancellation",
        "The server MUST treat a client disconnect as cancellation of that request.",
    ),
    "cancel:in-progress": Requirement(
        _CANCELLATION,
        "Behavior Requirements",
        "Cancellation notifications MUST only reference requests that were previously issued by the client and are"
        " believed to still be in-progress.",
    ),
    "cancel:references-listen": Requirement(
        _CANCELLATION,
        "Behavior Requirements",
        "Server-sent cancellation notifications MUST reference a subscriptions/listen request, to terminate that"
        " subscription stream.",
    ),
    "cancel:stop-processing": Requirement(
        _CANCELLATION,
        "Behavior Requirements",
        "Servers receiving cancellation notifications SHOULD stop processing the cancelled request.",
    ),
    "cancel:free-resources": Requirement(
        _CANCELLATION,
        "Behavior Requirements",
        "Servers receiving cancellation notifications SHOULD free associated resources.",
    ),
    "cancel:no-response": Requirement(
        _CANCELLATION,
        "Behavior Requirements",
        "Servers receiving cancellation notifications SHOULD not send a response for the cancelled request.",
    ),
    "cancel:races": Requirement(
        _CANCELLATION, "Timing Considerations", "Both parties MUST handle these race conditions gracefully."
    ),
    "cancel:log-reasons": Requirement(
        _CANCELLATION, "Implementation Notes", "Both parties SHOULD log cancellation reasons for debugging."
    ),
    "cancel:ignore-invalid": Requirement(
        _CANCELLATION, "Error Handling", "Invalid cancellation notifications SHOULD be ignored."
    ),
    "http:one-endpoint": Requirement(
        _HTTP,
        "Streamable HTTP",
        "The server MUST provide a single HTTP endpoint path (hereafter referred to as the MCP endpoint) that supports"
        " POST.",
    ),
    "http:origin": Requirement(
        _HTTP,
        "Security & Endpoint",
        "Servers MUST validate the Origin header on all incoming connections to prevent DNS rebinding attacks.",
    ),
    "http:origin-403": Requirement(
        _HTTP,
        "Security & Endpoint",
        "If the Origin header is present and invalid, servers MUST respond with HTTP 403 Forbidden.",
    ),
    "http:localhost": Requirement(
        _HTTP,
        "Security & Endpoint",
        "When running locally, servers SHOULD bind only to localhost (127.0.0.1) rather than all network interfaces.",
    ),
    "http:authentication": Requirement(
        _HTTP, "Security & Endpoint", "Servers SHOULD implement proper authentication for all connections."
    ),
    "http:notification-202": Requirement(
        _HTTP,
        "Sending Messages",
        "If the server accepts it, the server MUST return HTTP status code 202 Accepted with no body.",
    ),
    "http:notification-error": Requirement(
        _HTTP,
        "Sending Messages",
        "If the server cannot accept it, it MUST return an HTTP error status code (e.g., 400 Bad Request).",
    ),
    "http:json-or-sse": Requirement(
        _HTTP,
        "Sending Messages",
        "If the body is a JSON-RPC request, the server MUST return either Content-Type: application/json or"
        " Content-Type: text/event-stream.",
    ),
    "http:related": Requirement(
        _HTTP, "Receiving Messages", "These notifications MUST relate to the originating client request."
    ),
    "http:no-requests": Requirement(
        _HTTP,
        "Receiving Messages",
        "The server MUST NOT send independent JSON-RPC requests on this stream.",
    ),
    "http:response-ends": Requirement(
        _HTTP, "Receiving Messages", "The final JSON-RPC response SHOULD terminate the stream."
    ),
    "http:accel-buffering": Requirement(
        _HTTP,
        "Receiving Messages",
        "When initiating an SSE stream, servers SHOULD include the X-Accel-Buffering: no header in the HTTP response.",
    ),
    "http:close-cancels": Requirement(
        _HTTP,
        "Cancellation",
        "Closing the SSE response stream MUST be treated by the server as cancellation of that request.",
    ),
    "http:stop-work": Requirement(
        _HTTP, "Cancellation", "The server SHOULD stop work on the cancelled request as soon as practical"
    ),
    "http:no-further-messages": Requirement(_HTTP, "Cancellation", "and MUST NOT send any further messages for it."),
    "http:version-mismatch": Requirement(
        _HTTP,
        "Protocol Version Header",
        "If the values do not match, the server MUST reject the request with 400 Bad Request and a HeaderMismatch"
        " JSON-RPC error.",
    ),
    "http:unsupported-version": Requirement(
        _HTTP,
        "Protocol Version Header",
        "If the server does not implement the requested protocol version, it MUST respond with 400 Bad Request and an"
        " UnsupportedProtocolVersionError listing its supported versions.",
    ),
    "http:unknown-method": Requirement(
        _HTTP,
        "Protocol Version Header",
        "If the server does not implement the requested RPC method, it MUST respond with 404 Not Found and a JSON-RPC"
        " error with code -32601 (Method not found).",
    ),
    "http:missing-version": Requirement(
        _HTTP,
        "Protocol Version Header",
        "A server that does not support such clients MUST reject a request without the header per Server Validation.",
    ),
    "http:header-names": Requirement(
        _HTTP,
        "Case Sensitivity",
        "Clients and servers MUST use case-insensitive comparisons for header names.",
    ),
    "http:headers-match-body": Requirement(
        _HTTP,
        "Server Validation",
        "Servers that process the request body MUST reject requests where the values specified in the headers do not"
        " match the corresponding values in the request body.",
    ),
    "http:mismatch-400": Requirement(
        _HTTP,
        "Server Validation",
        "When rejecting a request due to header validation failure, servers MUST return HTTP status 400 Bad Request",
    ),
    "http:mismatch-code": Requirement(
        _HTTP,
        "Server Validation",
        "and MUST include a JSON-RPC error response using the error code -32020 (HeaderMismatch).",
    ),
    "http:get-405": Requirement(
        _HTTP,
        "Earlier Streamable HTTP Revisions",
        "[SHOULD] HTTP GET or DELETE to the MCP endpoint: respond with 405 Method Not Allowed.",
    ),
    "http:session-id": Requirement(
        _HTTP,
        "Earlier Streamable HTTP Revisions",
        "[SHOULD] An Mcp-Session-Id header on a request: ignore it, and do not mint or echo session IDs.",
    ),
    "http:last-event-id": Requirement(
        _HTTP,
        "Earlier Streamable HTTP Revisions",
        "[SHOULD] A Last-Event-ID header: ignore it; streams are not resumable.",
    ),
    "auth:metadata": Requirement(
        _AUTHORIZATION, "Overview", "MCP servers MUST implement OAuth 2.0 Protected Resource Metadata (RFC9728)."
    ),
    "auth:discovery": Requirement(
        _DISCOVERY,
        "Protected Resource Metadata Discovery Requirements",
        "MCP servers MUST implement one of the following discovery mechanisms to provide authorization server location"
        " information to MCP clients: WWW-Authenticate Header, Well-Known URI",
    ),
    "auth:scope-in-challenge": Requirement(
        _AUTHORIZATION,
        "Scope Selection Strategy",
        "MCP servers SHOULD include a scope parameter in the WWW-Authenticate header as defined in RFC 6750 Section 3"
        " to indicate the scopes required for accessing the resource.",
    ),
    "auth:audience": Requirement(
        _AUTHORIZATION,
        "Token Handling",
        "MCP servers MUST validate that access tokens were issued specifically for them as the intended audience,"
        " according to RFC 8707 Section 2.",
    ),
    "auth:401": Requirement(
        _AUTHORIZATION, "Token Handling", "Invalid or expired tokens MUST receive a HTTP 401 response."
    ),
    "auth:own-tokens": Requirement(
        _AUTHORIZATION,
        "Token Handling",
        "MCP servers MUST only accept tokens that are valid for use with their own resources.",
    ),
    "auth:no-transit": Requirement(
        _AUTHORIZATION, "Token Handling", "MCP servers MUST NOT accept or transit any other tokens."
    ),
    "auth:no-offline-access": Requirement(
        _AUTHORIZATION,
        "Refresh Tokens",
        "MCP Servers (Protected Resources) SHOULD NOT include offline_access in WWW-Authenticate scope or Protected"
        " Resource Metadata scopes_supported",
    ),
    "auth:insufficient-scope": Requirement(
        _AUTHORIZATION,
        "Runtime Insufficient Scope Errors",
        "When a client makes a request with an access token with insufficient scope during runtime operations, the"
        " server SHOULD respond with: HTTP 403 Forbidden status code, WWW-Authenticate header with the Bearer scheme",
    ),
    "auth:all-scopes-at-once": Requirement(
        _AUTHORIZATION,
        "Runtime Insufficient Scope Errors",
        "servers SHOULD include all scopes required for the current operation in a single challenge.",
    ),
    "resources:capability": Requirement(
        _RESOURCES, "Capabilities", "Servers that support resources MUST declare the resources capability."
    ),
    "resources:list": Requirement(
        _RESOURCES,
        "Capabilities",
        "Servers that declare the resources capability MUST respond to resources/list requests with the set of"
        " resources currently available to the requesting client.",
    ),
    "resources:list-stable": Requirement(
        _RESOURCES,
        "Capabilities",
        "This set MUST NOT vary per-connection or as a side effect of other requests on the connection.",
    ),
    "resources:list-changed": Requirement(
        _RESOURCES,
        "List Changed Notification",
        "When the list of available resources changes, servers that declared the listChanged capability SHOULD send a"
        " notification.",
    ),
    "resources:validate-uris": Requirement(
        _RESOURCES, "Security Considerations", "Servers MUST validate all resource URIs."
    ),
    "resources:access-controls": Requirement(
        _RESOURCES, "Security Considerations", "Access controls SHOULD be implemented for sensitive resources."
    ),
    "resources:permissions": Requirement(
        _RESOURCES, "Security Considerations", "Resource permissions SHOULD be checked before operations."
    ),
    "resources:not-found": Requirement(
        _RESOURCES,
        "Error Handling",
        "If the requested resource does not exist, servers MUST return a JSON-RPC error with code -32602.",
    ),
    "resources:no-empty-contents": Requirement(
        _RESOURCES,
        "Error Handling",
        "Servers MUST NOT return an empty contents array for a non-existent resource.",
    ),
}


def requirement(*names: str) -> Callable[[_TestT], _TestT]:
    """
    Say which requirements a test shows.
    """
    for name in names:
        if name not in REQUIREMENTS:
            raise ValueError(f"{name!r} is no requirement")
    return lambda test: test
