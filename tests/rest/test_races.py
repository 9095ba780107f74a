"""
Two who change the same row at the same time.
"""

import threading

import pytest

BEGIN = """
from django.db import transaction
transaction.set_autocommit(False)
models.Principal.objects.get(name="x").delete()
"""
COMMIT = """
import time
from django.db import connection, transaction
with connection.cursor() as cursor:
    while True:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        if cursor.fetchone()[0]:
            break
        time.sleep(0.01)
transaction.commit()
transaction.set_autocommit(True)
"""
CALL = """
from rest_framework.test import APIClient
user = User.objects.get(username="root")
client = APIClient(headers={"Host": "localhost"})
client.raise_request_exception = False
client.force_authenticate(user)
key = models.Principal.objects.get(name="x").pk
token = models.AccessToken.objects.get(principal=key).pk
url = "/api/mcp/" + path.format(key=key, token=token)
result = getattr(client, method)(url, body_of(key), format="json").status_code
"""


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("patch", "principals/{key}/", "lambda key: {'notes': 'x'}"),
        ("delete", "principals/{key}/", "lambda key: None"),
        ("post", "tokens/{token}/revoke/", "lambda key: None"),
        ("post", "tokens/", "lambda key: {'principal': key}"),
    ],
)
def test_what_another_deletes_meanwhile_is_not_found(make_project, postgres, method, path, body):
    project = make_project(DATABASE_URL=postgres.create(f"race_{method}_{len(path)}"))
    project.worker.run(
        """
User.objects.create(username="root", is_superuser=True)
models.AccessToken.objects.issue(models.Principal.objects.create(name="x"))
"""
    )
    project.worker.run(BEGIN)
    other, answers = project.new_worker(), []
    call = threading.Thread(
        target=lambda: answers.append(other.run(f"body_of = {body}\n{CALL}", method=method, path=path))
    )
    call.start()
    project.worker.run(COMMIT)
    call.join(30)
    # A token for a principal that isn't there is the caller's mistake.
    assert answers == [400 if path == "tokens/" else 404]
