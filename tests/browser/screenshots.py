"""
Takes the pictures of the admin that the documentation shows: ``python -m tests.browser.screenshots [DIRECTORY]``.
"""

import sys
import tempfile
from pathlib import Path

from tests.browser.scene import FILL
from tests.support.browser import Browser, browser
from tests.support.processes import ROOT
from tests.support.project import Project

IMAGES = ROOT / "docs" / "images"


def take(site: Browser, keys: dict[str, int], directory: Path) -> None:
    """
    One picture of each page.
    """

    def picture(name: str, width: int = 1400) -> None:
        site.screenshot(directory / f"admin-{name}.png", width)

    site.log_in("admin", "admin")
    site.open("/admin/mcp_channels/principal/")
    picture("principals")
    site.open(f"/admin/mcp_channels/principal/{keys['alice']}/change/")
    picture("principal")
    site.type("#id_tokens-2-0-label", "new laptop")
    site.follow(site.find("input[name=_save]"))
    site.find(".mcp-token")
    picture("new-token")
    site.open("/admin/mcp_channels/accesstoken/")
    picture("tokens")
    site.open("/admin/mcp_channels/livestream/")
    picture("streams", 1600)
    site.open(f"/admin/mcp_channels/livestream/{keys['stream']}/change/")
    picture("stream")
    site.open("/admin/mcp_channels/scope/")
    picture("scopes")


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        project = Project(Path(name))
        try:
            keys = project.worker.run(FILL)
            server = project.serve("uvicorn")
            with browser(server.url, Path(name) / "profile") as site:
                take(site, keys, directory)
        finally:
            project.stop()


if __name__ == "__main__":
    main()
