import json

import pytest

from mcp_channels.listen import frames
from mcp_channels.listen.frames import SERVER_INFO, SUBSCRIPTION_ID
from mcp_channels.topics import PROMPTS, RESOURCES, TOOLS, resource


def read(data: bytes) -> list[dict]:
    messages = []
    for frame in data.removesuffix(b"\r\n\r\n").split(b"\r\n\r\n"):
        event, line = frame.split(b"\r\n")
        assert event == b"event: message"
        messages.append(json.loads(line.removeprefix(b"data: ")))
    return messages


@pytest.mark.parametrize(
    ("topic", "method"),
    [
        (TOOLS, "notifications/tools/list_changed"),
        (PROMPTS, "notifications/prompts/list_changed"),
        (RESOURCES, "notifications/resources/list_changed"),
    ],
)
def test_a_list_changed_carries_the_subscription_id_alone(topic, method):
    data = frames.frame(frames.notification_head(topic), b"7")
    assert read(data) == [{"jsonrpc": "2.0", "method": method, "params": {"_meta": {SUBSCRIPTION_ID: 7}}}]


def test_an_update_carries_its_uri():
    [message] = read(frames.frame(frames.notification_head(resource("note://1")), b'"a"'))
    assert message["params"] == {"uri": "note://1", "_meta": {SUBSCRIPTION_ID: "a"}}


@pytest.mark.parametrize("id_", ["1", 1, 2**53 - 1, 10**30, -5, "ü", "", 'a"b\\c\n', "\u2028", "\ud800"])
def test_the_id_comes_back_in_its_json_type(id_):
    [message] = read(frames.acknowledged({}, frames.dumps(id_)))
    assert message["params"]["_meta"][SUBSCRIPTION_ID] == id_
    assert type(message["params"]["_meta"][SUBSCRIPTION_ID]) is type(id_)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\r", "\n", "\x0b", "ü", "\U0001f600"])
def test_no_payload_can_end_a_line(character):
    data = frames.frame(frames.notification_head(resource(f"note://{character}")), b"1")
    assert data.isascii()
    assert data.count(b"\n") == 3
    assert read(data)[0]["params"]["uri"] == f"note://{character}"


def test_the_acknowledgment_is_the_honoured_filter():
    [message] = read(frames.acknowledged({"toolsListChanged": True}, b"1"))
    assert message["method"] == "notifications/subscriptions/acknowledged"
    assert message["params"]["notifications"] == {"toolsListChanged": True}


def test_a_stream_closes_with_cancelled_and_then_the_result():
    info = {"name": "x", "version": ""}
    cancelled, result = read(frames.closing(b'"l"', reason="shutdown", server_info=frames.dumps(info)))
    assert cancelled == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": "l", "reason": "shutdown", "_meta": {SUBSCRIPTION_ID: "l"}},
    }
    assert result == {
        "jsonrpc": "2.0",
        "id": "l",
        "result": {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: "l", SERVER_INFO: info}},
    }


def test_a_keep_alive_is_a_comment():
    assert frames.KEEP_ALIVE == b":\r\n\r\n"
