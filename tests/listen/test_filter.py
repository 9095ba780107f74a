import pytest

from mcp_channels.listen.filter import Filter, FilterError, parse
from mcp_channels.topics import PROMPTS, TOOLS, resource


def read(notifications, max_entries=1000):
    return parse({"notifications": notifications}, max_entries=max_entries)


def test_every_field_is_read():
    asked = read(
        {
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourcesListChanged": True,
            "resourceSubscriptions": ["note://1"],
            "taskIds": ["t"],
        }
    )
    assert asked == Filter(frozenset({"tools", "prompts", "resources"}), ("note://1",), ("t",))


@pytest.mark.parametrize("empty", [False, None])
def test_a_field_that_asks_for_nothing_is_left_out(empty):
    assert read({"toolsListChanged": empty}).to_wire() == {}


@pytest.mark.parametrize("field", ["resourceSubscriptions", "taskIds"])
@pytest.mark.parametrize("empty", [[], None])
def test_an_empty_list_is_left_out(field, empty):
    assert read({field: empty}).to_wire() == {}


def test_unknown_fields_are_ignored():
    assert read({"filesChanged": 7, "toolsListChanged": True}).to_wire() == {"toolsListChanged": True}


def test_duplicates_collapse_and_order_is_kept():
    assert read({"resourceSubscriptions": ["b", "a", "b", "c", "a"]}).resource_subscriptions == ("b", "a", "c")


@pytest.mark.parametrize("field", ["toolsListChanged", "promptsListChanged", "resourcesListChanged"])
@pytest.mark.parametrize("value", ["yes", 1, 0, [], {}, 1.0])
def test_a_flag_of_the_wrong_type_is_an_error(field, value):
    with pytest.raises(FilterError, match=field):
        read({field: value})


@pytest.mark.parametrize("field", ["resourceSubscriptions", "taskIds"])
@pytest.mark.parametrize("value", [42, "abc", {"0": "a"}, True, [1], [None], ["a", ["b"]]])
def test_a_list_of_the_wrong_type_is_an_error(field, value):
    with pytest.raises(FilterError, match=field):
        read({field: value})


@pytest.mark.parametrize("notifications", [None, [], "x", 7, True])
def test_notifications_that_are_no_object_are_an_error(notifications):
    with pytest.raises(FilterError):
        read(notifications)


def test_missing_notifications_are_an_error():
    with pytest.raises(FilterError):
        parse({}, max_entries=1000)


@pytest.mark.parametrize("field", ["resourceSubscriptions", "taskIds"])
def test_one_entry_too_many_is_an_error(field):
    assert len(read({field: [str(n) for n in range(1000)]}).to_wire()[field]) == 1000
    with pytest.raises(FilterError, match="1001 entries"):
        read({field: [str(n) for n in range(1001)]})


def test_narrowing_keeps_what_is_allowed_in_order():
    asked = read({"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["c", "b", "a"]})
    honoured = asked.narrow(lists={"tools"}, uris={"a", "c"})
    assert honoured.to_wire() == {"toolsListChanged": True, "resourceSubscriptions": ["c", "a"]}


def test_topics_are_what_is_honoured():
    honoured = Filter(frozenset({"tools", "prompts"}), ("note://1",))
    assert list(honoured.topics()) == [TOOLS, PROMPTS, resource("note://1")]


def test_kinds_name_no_uri():
    assert Filter(frozenset({"tools"}), ("note://secret",)).kinds() == ("toolsListChanged", "resourceSubscriptions")
