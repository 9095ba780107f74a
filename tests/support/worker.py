"""
The other side of ``processes.Worker``.
"""

import json
import os
import sys
import traceback

import django


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    django.setup()
    from django.contrib.auth import get_user_model

    from example_project.notes.models import Note, Tag
    from mcp_channels import models, notify
    from mcp_channels.publisher import publisher

    names = {"Note": Note, "Tag": Tag, "User": get_user_model(), "models": models, "notify": notify}
    for line in sys.stdin:
        order = json.loads(line)
        space = {**names, **order["values"], "result": None}
        try:
            exec(order["code"], space)
            if order["flush"]:
                publisher.flush(5)
            answer = {"result": space["result"]}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
