import pytest

from tests.support.http import listening
from tests.support.processes import SERVERS


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_save_in_another_process_reaches_a_stream(project, kind):
    server = project.serve(kind, plain=True)
    token = project.token()
    pk = project.note()
    async with listening(server.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=token) as stream:
        project.save(pk)
        message = await stream.message()
        assert message["method"] == "notifications/resources/updated"
        assert message["params"]["uri"] == f"note://{pk}"
