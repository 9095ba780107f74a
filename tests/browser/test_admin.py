"""
The admin as a person uses it: a real server, a real browser, real streams.
"""

import asyncio
import re

import pytest

from tests.support.browser import Browser, browser
from tests.support.http import listen, listening

# A machine without a Chromium installs one first.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def make_browser(tmp_path):
    """
    A function that starts a browser for a server, and logs in.
    """
    started = []

    def make(project, url: str) -> Browser:
        project.worker.run(
            "User.objects.create_superuser('root', password='correct horse')\n"
            "models.Scope.named(['notes:read', 'notes:write'])"
        )
        context = browser(url, tmp_path / "profile")
        site = context.__enter__()
        started.append(context)
        site.log_in("root", "correct horse")
        assert "Live streams" in site.text()
        return site

    yield make
    for context in started:
        context.__exit__(None, None, None)


def make_principal(site: Browser) -> str:
    """
    Make a principal with a scope, a cap of four and a token; returns the token.
    """
    site.open("/admin/mcp_channels/principal/add/")
    site.type("#id_name", "robot")
    site.check("notes:read")
    site.type("#id_max_streams", "4")
    site.type("#id_tokens-0-label", "laptop")
    site.follow(site.find("input[name=_save]"))
    assert "will not be shown again" in site.text()
    token = site.find(".mcp-token").get_attribute("value")
    assert re.fullmatch(r"mcp_[\w-]{40,}", token)
    return token


def cap(site: Browser, number: int) -> None:
    """
    Set the cap in the list of principals.
    """
    site.open("/admin/mcp_channels/principal/")
    site.type("#id_form-0-max_streams", str(number))
    site.follow(site.find("input[name=_save]"))
    assert "1 principal was changed successfully." in site.text()


def streams(site: Browser) -> list[str]:
    """
    The rows of the list of streams.
    """
    site.open("/admin/mcp_channels/livestream/")
    return [row.text for row in site.all("#result_list tbody tr")]


def disconnect_all(site: Browser) -> None:
    site.click("#action-toggle")
    site.choose("select[name=action]", "Disconnect selected live streams")
    site.follow(site.find("button[name=index]"))
    assert "Disconnected 1 stream." in site.text()


@pytest.mark.parametrize("kind", ["uvicorn", "daphne"])
async def test_a_capped_principal_has_one_stream_which_the_admin_disconnects(project, make_browser, kind):
    server = project.serve(kind)
    site = await asyncio.to_thread(make_browser, project, server.url)
    token = await asyncio.to_thread(make_principal, site)
    await asyncio.to_thread(cap, site, 1)
    pk = project.note()
    asked = {"resourceSubscriptions": [f"note://{pk}"]}
    async with listening(server.port, asked, token=token, id="first") as first:
        async with listening(server.port, asked, token=token, id="second") as second:
            ending = await first.ending()
            assert ending[0]["params"]["reason"] == "superseded"
            rows = await asyncio.to_thread(streams, site)
            assert len(rows) == 1, site.text()
            for shown in ("robot", "1 URI", "tests 1", "127.0.0.1"):
                assert shown in rows[0]
            await asyncio.to_thread(disconnect_all, site)
            async with asyncio.timeout(5):
                *notifications, cancelled, result = await second.ending()
            assert notifications == []
            assert cancelled["params"]["reason"] == "revoked"
            assert result["id"] == "second"
            assert result["result"]["resultType"] == "complete"
    assert await asyncio.to_thread(streams, site) == []
    assert "0 streams" in site.text()
    assert token.removeprefix("mcp_")[10:] not in server.read_log()


async def test_a_token_revoked_in_the_browser_lets_nobody_in(project, make_browser):
    server = project.serve("uvicorn")
    site = await asyncio.to_thread(make_browser, project, server.url)
    token = await asyncio.to_thread(make_principal, site)

    def revoke() -> None:
        site.follow(site.driver.find_element("link text", "Continue"))
        site.follow(site.driver.find_element("link text", "robot"))
        site.click("input[name=tokens-0-revoke]")
        site.follow(site.find("input[name=_save]"))

    async with listening(server.port, {"toolsListChanged": True}, token=token) as stream:
        await asyncio.to_thread(revoke)
        async with asyncio.timeout(5):
            assert (await stream.ending())[0]["params"]["reason"] == "revoked"
    async with listen(server.port, {"toolsListChanged": True}, token=token) as refused:
        assert refused.status == 401


async def test_reloading_the_page_of_a_new_token_makes_no_second_one(project, make_browser):
    server = project.serve("uvicorn")
    site = await asyncio.to_thread(make_browser, project, server.url)

    def reload() -> None:
        token = make_principal(site)
        site.find(".mcp-copy")
        site.driver.refresh()
        site.find("#principal_form")
        assert token not in site.driver.page_source
        assert project.worker.run("result = models.AccessToken.objects.count()") == 1

    await asyncio.to_thread(reload)


async def test_scopes_are_granted_in_the_list(project, make_browser):
    server = project.serve("uvicorn")
    site = await asyncio.to_thread(make_browser, project, server.url)
    project.token("alice", scopes=("notes:read",))

    def grant() -> None:
        site.open("/admin/mcp_channels/principal/")
        assert site.find(".mcp-scopes summary").text == "notes:read"
        site.click(".mcp-scopes summary")
        site.check("notes:write")
        site.check("notes:read")
        site.follow(site.find("input[name=_save]"))
        assert site.find(".mcp-scopes summary").text == "notes:write"

    await asyncio.to_thread(grant)
    granted = project.worker.run("result = [s.name for s in models.Principal.objects.get().scopes.all()]")
    assert granted == ["notes:write"]
