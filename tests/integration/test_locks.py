"""
Transactions of the project that hold the rows of streams, and last.
"""

import asyncio
import time

import pytest

from tests.integration.test_endings import check_closing
from tests.support.http import call, listening
from tests.support.project import Project

HOLD = """
import os
import time
from django.db import transaction
with transaction.atomic():
    {change}
    open(held, "w").close()
    for _ in range(400):
        time.sleep(0.05)
        if not os.path.exists(held):
            break
"""

CHANGES = {
    "every stream's row is locked": "list(models.LiveStream.objects.select_for_update())",
    "a token is deleted": "models.AccessToken.objects.filter(principal__name=name).delete()",
    "a principal is saved": "models.Principal.objects.get(name=name).save()",
    "a principal is deactivated": "models.Principal.objects.update_or_create(name=name, defaults={'is_active': False})",
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory, postgres):
    """
    The example project on PostgreSQL. The layer is in memory: what a node hears of other processes, it finds in the
    database.
    """
    project = Project(tmp_path_factory.mktemp("stored"), DATABASE_URL=postgres.create(f"locks_{time.monotonic_ns()}"))
    project.server = project.serve("uvicorn")
    yield project
    project.stop()


@pytest.mark.parametrize("change", CHANGES)
async def test_a_transaction_that_lasts_holds_up_no_other_order(stored, tmp_path, change):
    port = stored.server.port
    name, held, holder = f"alice, of whom {change}", tmp_path / "held", stored.new_worker()
    alice, bob = stored.token(name), stored.token(f"bob, while {change}")
    holder.run("result = None")
    async with (
        listening(port, {"toolsListChanged": True}, token=alice) as one,
        listening(port, {}, token=bob) as two,
    ):
        code = HOLD.format(change=CHANGES[change])
        holding = asyncio.create_task(asyncio.to_thread(holder.run, code, name=name, held=str(held)))
        try:
            async with asyncio.timeout(5):
                while not held.exists():
                    await asyncio.sleep(0.01)
            # That this was delivered is to be written, to a row that is held.
            await call(port, "tools/call", {"name": "add_tool", "arguments": {"name": change}}, token=bob)
            assert (await one.message())["method"] == "notifications/tools/list_changed"
            stored.worker.run("models.Principal.objects.filter(name__startswith='bob').update(is_active=False)")
            check_closing(await two.ending(timeout=5), "revoked")
            assert not holding.done()
        finally:
            held.unlink(missing_ok=True)
            await holding
