import json
import random
import re

import pytest
from channels.layers import BaseChannelLayer

from mcp_channels import topics
from mcp_channels.topics import MalformedError, Topic

URIS = [
    "note://1",
    "https://example.com/a b?c=d#e",
    "note://ü/\U0001f600",
    "x" * 300,
    "a" * 120 + "1",
    "a" * 120 + "2",
    "note://'\"%0A%0D",
    "",
    "\ud800",
    "n:" + "é" * 2000,
]


@pytest.mark.parametrize("uri", URIS)
def test_a_group_name_is_valid_for_every_layer(uri):
    layer = BaseChannelLayer()
    assert layer.require_valid_group_name(topics.resource(uri).group)
    # Layers put a prefix before it.
    assert len(topics.resource(uri).group) <= 70


def test_the_lists_have_groups_of_their_own():
    groups = {topic.group for topic in (topics.TOOLS, topics.PROMPTS, topics.RESOURCES, topics.resource("tools"))}
    assert len(groups) == 4
    assert all(re.fullmatch(r"[a-zA-Z\d\-_.]+", group) for group in groups)


def test_random_uris_do_not_collide():
    numbers = random.Random(1)
    uris = {f"note://{numbers.random()}" for _ in range(100_000)}
    assert len({topics.resource(uri).group for uri in uris}) == len(uris)


def test_a_message_gives_back_its_topics():
    changed = [topics.TOOLS, topics.resource("note://ü")]
    assert list(topics.read_changed(topics.changed_message(changed))) == changed


@pytest.mark.parametrize("entries", [[], [None], [[]], [["tools"]], [["later", "x"]], [["tools", 7]]])
def test_topics_that_are_unknown_are_skipped(entries):
    entries = [*entries, ["tools", ""]]
    assert list(topics.read_changed({"type": topics.CHANGED, "topics": json.dumps(entries)})) == [topics.TOOLS]


@pytest.mark.parametrize(
    "carried",
    [
        None,
        7,
        b"[]",
        [["tools", ""]],
        "",
        "[",
        "7",
        "null",
        '{"a": 1}',
        "[" * 100_000,
        " " * topics.LONGEST_MESSAGE + "[]",
        json.dumps([["tools", ""]] * (topics.MOST_TOPICS + 1)),
    ],
    ids=lambda carried: repr(carried)[:20],
)
def test_a_message_without_a_list_of_topics_is_malformed(carried):
    with pytest.raises(MalformedError) as caught:
        list(topics.read_changed({"type": topics.CHANGED, "topics": carried}))
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("uri", URIS)
def test_a_message_is_ascii_whatever_the_uri(uri):
    message = topics.changed_message([topics.resource(uri)])
    assert str(message["topics"]).isascii()
    assert list(topics.read_changed(message)) == [topics.resource(uri)]


def test_batches_are_bounded_by_count_and_by_size():
    many = [topics.resource(str(number)) for number in range(topics.BATCH_LIMIT + 1)]
    assert [len(batch) for batch in topics.batches(many)] == [topics.BATCH_LIMIT, 1]
    large = [topics.resource("x" * (topics.BATCH_BYTES // 2 + number)) for number in range(3)]
    assert [len(batch) for batch in topics.batches(large)] == [1, 1, 1]
    huge = [topics.resource("x" * topics.BATCH_BYTES * 2)]
    assert list(topics.batches(huge)) == [huge]


def test_topics_compare_byte_for_byte():
    assert topics.resource("file:///a") != topics.resource("file:///a/b")
    assert topics.resource("note://é") != topics.resource("note://e\u0301")
    assert Topic("tools") == topics.TOOLS
