"""
Each row of the listen request's table, over raw HTTP.
"""

import json

import pytest

from tests.spec_requirements import requirement
from tests.support.http import META, call, listen, listen_body, listen_headers, listening, request


async def refused(response, status: int, code: int | None, id: object = 1) -> dict:
    """
    Check that the response is a JSON-RPC error, and no stream.
    """
    body = await response.json()
    assert (response.status, body["error"]["code"], body["id"]) == (status, code, id), body
    assert response.header("content-type") == "application/json"
    assert "Traceback" not in json.dumps(body)
    return body["error"]


async def post(served, *, body: bytes | None = None, expect, headers=None, token="own"):
    async with request(
        served.port,
        headers=listen_headers() if headers is None else headers,
        body=listen_body({"toolsListChanged": True}) if body is None else body,
        token=served.token if token == "own" else token,
    ) as response:
        return await refused(response, *expect)


@requirement("http:one-endpoint", "http:json-or-sse")
async def test_a_good_request_is_a_stream(served):
    async with listen(served.port, {"toolsListChanged": True}, token=served.token) as response:
        assert response.status == 200
        assert response.header("content-type") == "text/event-stream"


@requirement("http:json-or-sse")
@pytest.mark.parametrize("accept", ["application/json", "text/html", "", None])
async def test_without_sse_accepted_it_is_406(served, accept):
    await post(served, headers=listen_headers(accept=accept), expect=(406, -32600))


async def test_several_accept_headers_count_together(served):
    headers = [*listen_headers(accept="application/json").items(), ("Accept", "text/event-stream;q=0.5")]
    async with request(
        served.port, headers=headers, body=listen_body({"toolsListChanged": True}), token=served.token
    ) as response:
        assert response.status == 200


async def test_a_body_over_the_limit_is_413(served):
    body = listen_body({"resourceSubscriptions": ["x" * (4 * 1024 * 1024)]})
    headers = {**listen_headers(), "Content-Length": str(len(body))}
    # Daphne hands a request over when it is whole; elsewhere the declared length is enough to refuse it.
    sent = body if served.server.kind == "daphne" else b""
    await post(served, headers=headers, body=sent, expect=(413, -32600, None))


async def test_a_body_over_the_limit_in_pieces_is_413(served):
    headers = {**listen_headers(), "Transfer-Encoding": "chunked"}
    body = b"%x\r\n%b\r\n" % (5 * 1024 * 1024, b"x" * (5 * 1024 * 1024)) + b"0\r\n\r\n"
    await post(served, headers=headers, body=body, expect=(413, -32600, None))


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\xff\xfe", b"[" * 100_000, b'{"id":' + b"9" * 5000 + b"}"])
async def test_what_is_no_json_is_a_parse_error(served, body):
    await post(served, body=body, expect=(400, -32700, None))


@pytest.mark.parametrize(
    "body", [[], [json.loads(listen_body({}))], 7, "x", None, {"jsonrpc": "2.0", "id": 1, "result": {}}]
)
async def test_a_batch_or_a_response_is_an_invalid_request(served, body):
    await post(served, body=json.dumps(body).encode(), expect=(400, -32600, None))


@pytest.mark.parametrize("change", [{"jsonrpc": "1.0"}, {"params": [1]}, {"params": "x"}])
async def test_a_bad_envelope_is_an_invalid_request(served, change):
    body = {**json.loads(listen_body({})), **change}
    await post(served, body=json.dumps(body).encode(), expect=(400, -32600, None))


@requirement("http:notification-error")
@pytest.mark.parametrize("id_", [1.5, None, True, [], {}])
async def test_an_id_that_is_no_string_or_integer_is_an_invalid_request(served, id_):
    await post(served, body=listen_body({"toolsListChanged": True}, id=id_), expect=(400, -32600, None))


@requirement("http:notification-error")
async def test_a_listen_without_an_id_is_an_invalid_request(served):
    body = json.loads(listen_body({"toolsListChanged": True}))
    del body["id"]
    await post(served, body=json.dumps(body).encode(), expect=(400, -32600, None))


@requirement("http:headers-match-body", "http:mismatch-400", "http:mismatch-code", "http:version-mismatch")
@pytest.mark.parametrize(
    "changes",
    [
        {"mcp_method": "tools/list"},
        {"mcp_method": "SUBSCRIPTIONS/LISTEN"},
        {"mcp_protocol_version": "2027-01-01"},
        {"mcp_protocol_version": "2025-11-25"},
    ],
)
async def test_headers_that_disagree_with_the_body_are_a_mismatch(served, changes):
    await post(served, headers=listen_headers(**changes), expect=(400, -32020))


@requirement("http:headers-match-body", "http:mismatch-400", "http:mismatch-code", "http:missing-version")
@pytest.mark.parametrize("name", ["mcp_method", "mcp_protocol_version"])
async def test_a_missing_required_header_is_a_mismatch(served, name):
    await post(served, headers=listen_headers(**{name: None}), expect=(400, -32020))


@pytest.mark.parametrize(
    "extra", [("Mcp-Method", "subscriptions/listen"), ("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Name", "a")]
)
async def test_a_header_that_is_sent_twice_is_a_mismatch(served, extra):
    headers = [*listen_headers().items(), extra, *([extra] if extra[0] == "Mcp-Name" else [])]
    await post(served, headers=headers, expect=(400, -32020))


@requirement("http:unsupported-version")
async def test_an_unknown_version_is_told_the_supported_ones(served):
    meta = {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    error = await post(
        served,
        headers=listen_headers(mcp_protocol_version="2099-01-01"),
        body=listen_body({}, meta=meta),
        expect=(400, -32022),
    )
    assert error["data"] == {"supported": ["2026-07-28"], "requested": "2099-01-01"}


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {},
        {key: value for key, value in META.items() if not key.endswith("/protocolVersion")},
        {key: value for key, value in META.items() if not key.endswith("/clientCapabilities")},
        {**META, "io.modelcontextprotocol/clientCapabilities": []},
        {**META, "io.modelcontextprotocol/clientInfo": "me"},
    ],
)
async def test_a_bad_meta_is_invalid_params(served, meta):
    await post(served, body=listen_body({"toolsListChanged": True}, meta=meta), expect=(400, -32602))


@requirement("http:unknown-method")
@pytest.mark.parametrize("version", [None, "2025-11-25", "2025-03-26"])
async def test_a_legacy_listen_is_method_not_found(served, version):
    headers = listen_headers(mcp_protocol_version=version, mcp_method=None)
    await post(served, headers=headers, body=listen_body({}, meta=None), expect=(404, -32601))


@pytest.mark.parametrize(
    "notifications",
    [
        None,
        [],
        "x",
        {"toolsListChanged": "yes"},
        {"resourceSubscriptions": 42},
        {"resourceSubscriptions": "abc"},
        {"resourceSubscriptions": [1]},
        {"resourceSubscriptions": [None]},
        {"resourceSubscriptions": [f"note://{n}" for n in range(1001)]},
        {"taskIds": [str(n) for n in range(1001)]},
    ],
)
async def test_a_bad_filter_is_invalid_params_and_no_stream(served, notifications):
    await post(served, body=listen_body(notifications), expect=(400, -32602))


async def test_task_ids_need_the_tasks_capability(served):
    error = await post(served, body=listen_body({"taskIds": ["t"]}), expect=(400, -32021))
    assert error["data"] == {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}


@requirement("http:origin", "http:origin-403")
@pytest.mark.parametrize(
    "origin",
    ["https://evil.test", "null", "http://127.0.0.1.evil.test", "http://127.0.0.1:1", "https://127.0.0.1", "x"],
)
async def test_a_foreign_origin_is_403_before_anything_else(served, origin):
    for method, token in (("POST", served.token), ("POST", None), ("GET", None), ("OPTIONS", None)):
        async with request(
            served.port, method=method, headers=listen_headers(origin=origin), body=b"nonsense", token=token
        ) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (403, -32600)


@requirement("http:origin")
async def test_the_own_origin_is_accepted(served):
    origin = f"http://127.0.0.1:{served.port}"
    async with listen(served.port, {"toolsListChanged": True}, token=served.token, origin=origin) as response:
        assert response.status == 200


@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1.evil.test", ""])
async def test_a_host_that_is_not_allowed_is_refused(served, host):
    async with request(
        served.port, headers={**listen_headers(), "Host": host}, body=listen_body({}), token=served.token
    ) as response:
        assert response.status == 400


@requirement("http:authentication")
@pytest.mark.parametrize("token", [None, "mcp_wrong", "\xff\xfe", " ", "a b"])
async def test_a_caller_without_good_credentials_is_401(served, token):
    async with request(
        served.port, headers=listen_headers(), body=listen_body({"toolsListChanged": True}), token=token
    ) as response:
        assert response.status == 401
        assert response.header("www-authenticate").startswith("Bearer")


async def test_who_may_not_call_is_told_that_first(served):
    async with request(served.port, headers=listen_headers(), body=b"nonsense") as response:
        assert response.status == 401


@requirement("http:get-405")
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("with_token", [True, False])
async def test_other_methods_than_post_are_405(served, method, with_token):
    async with request(
        served.port,
        method=method,
        headers=listen_headers(content_type=None),
        token=served.token if with_token else None,
    ) as response:
        assert response.status == 405
        assert response.header("allow") == "POST"
        assert response.header("www-authenticate") is None


@requirement("http:unknown-method")
async def test_another_unknown_method_is_method_not_found(served):
    headers = listen_headers(mcp_method="no/such")
    body = {**json.loads(listen_body({})), "method": "no/such"}
    await post(served, headers=headers, body=json.dumps(body).encode(), expect=(404, -32601))


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_another_content_type_is_refused(served, content_type):
    await post(served, headers=listen_headers(content_type=content_type), expect=(400, -32600))


@requirement("http:header-names")
async def test_header_names_have_no_case(served):
    headers = [(name.upper(), value) for name, value in listen_headers().items()]
    async with request(
        served.port, headers=headers, body=listen_body({"toolsListChanged": True}), token=served.token
    ) as response:
        assert response.status == 200


async def test_white_space_around_header_values_is_ignored(served):
    headers = [(name, f"  {value} \t") for name, value in listen_headers().items()]
    async with request(
        served.port, headers=headers, body=listen_body({"toolsListChanged": True}), token=served.token
    ) as response:
        assert response.status == 200


@requirement("http:session-id", "http:last-event-id")
async def test_a_session_id_and_a_last_event_id_are_ignored(served):
    changes = {"mcp_session_id": "abc", "last_event_id": "7"}
    async with listening(served.port, {"toolsListChanged": True}, token=served.token, **changes) as stream:
        assert stream.header("mcp-session-id") is None


@requirement("http:notification-202", "cancel:ignore-invalid", "cancel:races")
async def test_a_posted_cancellation_is_accepted_and_ends_no_stream(served):
    """
    Over HTTP a client cancels by closing the stream; honouring an id from anybody would let one end another's stream.
    """
    async with listening(served.port, {"toolsListChanged": True}, token=served.token, id="mine") as stream:
        for request_id in ("mine", "unknown", None, 1.5):
            body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
            headers = listen_headers(mcp_method="notifications/cancelled")
            async with request(
                served.port, headers=headers, body=json.dumps(body).encode(), token=served.token
            ) as response:
                assert response.status == 202
                assert await response.body() == b""
        served.project.manage("mcp_notify", "tools")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"


async def test_bad_input_ends_no_other_stream(served):
    async with listening(served.port, {"toolsListChanged": True}, token=served.token) as stream:
        for body in (b"{", b"[]", listen_body({"toolsListChanged": 1}), listen_body(id=[]), b"\x00" * 1000):
            async with request(served.port, headers=listen_headers(), body=body, token=served.token) as response:
                assert response.status == 400
        served.project.manage("mcp_notify", "tools")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"


async def test_a_refusal_leaves_the_endpoint_working(served):
    assert "result" in await call(served.port, "tools/list", token=served.token)
    assert "Traceback" not in served.server.read_log()
