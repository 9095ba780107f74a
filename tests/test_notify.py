"""
When a notification leaves, and when it doesn't.
"""

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.test import TestCase

import mcp_channels
from mcp_channels import notify, topics
from mcp_channels.publisher import publisher

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def test_each_function_publishes_its_topic(left):
    notify.notify_tools_changed()
    notify.notify_prompts_changed()
    notify.notify_resources_changed()
    notify.notify_resource_updated("note://1")
    assert left == [topics.TOOLS, topics.PROMPTS, topics.RESOURCES, topics.resource("note://1")]


@pytest.mark.parametrize("immediately", [True, False])
async def test_each_async_function_publishes_its_topic(left, immediately):
    await notify.anotify_tools_changed(immediately=immediately)
    await notify.anotify_prompts_changed(immediately=immediately)
    await notify.anotify_resources_changed(immediately=immediately)
    await notify.anotify_resource_updated("note://1", immediately=immediately)
    assert left == [topics.TOOLS, topics.PROMPTS, topics.RESOURCES, topics.resource("note://1")]


@pytest.mark.parametrize("uri", [None, 7, b"note://1"])
async def test_a_uri_that_is_no_text_is_a_type_error(uri):
    with pytest.raises(TypeError):
        notify.notify_resource_updated(uri)
    with pytest.raises(TypeError):
        await notify.anotify_resource_updated(uri)


def test_inside_a_transaction_it_waits_for_the_commit(left):
    with transaction.atomic():
        notify.notify_tools_changed()
        with transaction.atomic():
            notify.notify_prompts_changed()
        assert left == []
    assert left == [topics.TOOLS, topics.PROMPTS]


def test_immediately_does_not_wait(left):
    with transaction.atomic():
        notify.notify_tools_changed(immediately=True)
        assert left == [topics.TOOLS]
    assert left == [topics.TOOLS]


def test_a_topic_leaves_once_for_each_transaction(left):
    for _ in range(2):
        with transaction.atomic():
            for _ in range(1000):
                notify.notify_resource_updated("note://1")
            with transaction.atomic():
                notify.notify_resource_updated("note://1")
                notify.notify_resource_updated("note://2")
    assert left == [topics.resource("note://1"), topics.resource("note://2")] * 2


def test_a_rollback_takes_it_back(left):
    with pytest.raises(RuntimeError), transaction.atomic():
        notify.notify_tools_changed()
        raise RuntimeError
    with transaction.atomic():
        notify.notify_prompts_changed()
    assert left == [topics.PROMPTS]


def test_a_rollback_of_a_savepoint_takes_back_its_own_alone(left):
    with transaction.atomic():
        notify.notify_tools_changed()
        with pytest.raises(RuntimeError), transaction.atomic():
            notify.notify_tools_changed()
            notify.notify_prompts_changed()
            raise RuntimeError
    assert left == [topics.TOOLS]


def test_what_a_rolled_back_savepoint_said_first_is_still_said_later(left):
    with transaction.atomic():
        with pytest.raises(RuntimeError), transaction.atomic():
            notify.notify_tools_changed()
            raise RuntimeError
        notify.notify_tools_changed()
    assert left == [topics.TOOLS]


def test_what_an_inner_savepoint_said_survives_with_it(left):
    with transaction.atomic():
        with transaction.atomic():
            with transaction.atomic():
                notify.notify_tools_changed()
            with pytest.raises(RuntimeError), transaction.atomic():
                notify.notify_tools_changed()
                raise RuntimeError
    assert left == [topics.TOOLS]


def test_a_block_without_a_savepoint_is_no_transaction_of_its_own(left):
    with transaction.atomic():
        with transaction.atomic(savepoint=False):
            notify.notify_tools_changed()
        notify.notify_tools_changed()
        with transaction.atomic(savepoint=False):
            notify.notify_tools_changed()
    assert left == [topics.TOOLS]


def test_a_transaction_of_one_database_does_not_hold_back_another(left):
    with transaction.atomic("other"):
        notify.notify_tools_changed(using="other")
        notify.notify_prompts_changed()
        assert left == [topics.PROMPTS]
    assert left == [topics.PROMPTS, topics.TOOLS]


def test_a_rollback_of_one_database_does_not_take_back_anothers(left):
    with pytest.raises(RuntimeError), transaction.atomic():
        notify.notify_tools_changed(using="other")
        raise RuntimeError
    assert left == [topics.TOOLS]


def test_other_commit_hooks_run_whatever_happens(left, monkeypatch):
    def broken(changed):
        raise RuntimeError("mine")

    monkeypatch.setattr(publisher, "publish", broken)
    ran = []
    with transaction.atomic():
        notify.notify_tools_changed()
        transaction.on_commit(lambda: ran.append(True))
    assert ran == [True]


def test_outside_autocommit_it_leaves_at_once(left):
    connection = connections["default"]
    connection.set_autocommit(False)
    try:
        notify.notify_tools_changed()
        assert left == [topics.TOOLS]
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_async_code_under_a_sync_transaction_waits_for_its_commit(left):
    with transaction.atomic():
        async_to_sync(notify.anotify_tools_changed)()
        assert left == []
    assert left == [topics.TOOLS]


async def test_sync_code_under_async_code_publishes(left):
    await sync_to_async(notify.notify_tools_changed)()
    assert left == [topics.TOOLS]


@pytest.mark.django_db(databases=["default"])
def test_captured_hooks_of_djangos_tests_run_each_time(left):
    for _ in range(2):
        with TestCase.captureOnCommitCallbacks(execute=True):
            notify.notify_tools_changed()
    assert left == [topics.TOOLS] * 2


def test_the_functions_are_public():
    for name in ("notify_tools_changed", "anotify_resource_updated"):
        assert getattr(mcp_channels, name) is getattr(notify, name)
