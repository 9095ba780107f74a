"""
A headless Chromium, driven by Selenium. The machine's own; as root on Debian it is installed where it is missing.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "chromium-driver")
DEADLINE = 60.0
WIDTH = 1400


def find() -> tuple[str, str]:
    """
    The paths of a Chromium and of its driver. ``CHROMIUM`` and ``CHROMEDRIVER`` name others than those on the path.
    """
    found = _find()
    if found is None:
        with (Path(tempfile.gettempdir()) / "mcp-channels-chromium.lock").open("w") as lock:
            # Test processes that run side by side wait for the one that installs.
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = _find() or _install()
    return found


def _find() -> tuple[str, str] | None:
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def _install() -> tuple[str, str]:
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists() or shutil.which("apt-get") is None:
        raise RuntimeError(
            "The admin's tests need Chromium and chromedriver on the path (Debian: chromium, chromium-driver), or named"
            " by the environment variables CHROMIUM and CHROMEDRIVER."
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Others than tests may install something just now.
    command = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300"]
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run([*command, *arguments], env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"apt-get {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    found = _find()
    if found is None:
        raise RuntimeError(f"The packages {' and '.join(PACKAGES)} brought no Chromium with a driver")
    return found


class Browser:
    """
    One browser, with a profile of its own.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str) -> None:
        """
        Go to a page of the site.
        """
        self.driver.get(f"{self.url}{path}")

    def find(self, selector: str) -> WebElement:
        """
        The one element that fits; waits for it.
        """
        self.wait(lambda: self.all(selector), f"an element {selector}")
        [element] = self.all(selector)
        return element

    def all(self, selector: str) -> list[WebElement]:
        """
        All elements that fit just now.
        """
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """
        Return when the condition holds.
        """
        WebDriverWait(self.driver, DEADLINE, poll_frequency=0.05).until(lambda _: condition(), f"waited for {what}")

    def type(self, selector: str, text: str) -> None:
        """
        Put text into a field, in place of what it holds.
        """
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def click(self, selector: str) -> None:
        """
        Click on what stays on its page.
        """
        self.find(selector).click()

    def check(self, label: str) -> None:
        """
        Click on the box with this label.
        """
        self.driver.find_element(By.XPATH, f"//label[normalize-space()='{label}']//input").click()

    def follow(self, element: WebElement) -> None:
        """
        Click on what leads to another page, and wait for that.
        """
        page = self.driver.find_element(By.TAG_NAME, "html")
        element.click()
        self.wait(lambda: self.driver.find_element(By.TAG_NAME, "html").id != page.id, "the next page")
        self.wait(lambda: self.driver.execute_script("return document.readyState") == "complete", "the whole page")

    def choose(self, selector: str, text: str) -> None:
        """
        Choose one of a list.
        """
        Select(self.find(selector)).select_by_visible_text(text)

    def text(self) -> str:
        """
        What can be read on the page.
        """
        return self.driver.find_element(By.TAG_NAME, "body").text

    def log_in(self, name: str, password: str) -> None:
        """
        Log in at the admin.
        """
        self.open("/admin/login/?next=/admin/")
        self.type("#id_username", name)
        self.type("#id_password", password)
        self.follow(self.find("input[type=submit]"))

    def screenshot(self, path: Path, width: int) -> None:
        """
        Take a picture of the whole page, this wide.
        """
        size = {"width": width, "deviceScaleFactor": 1, "mobile": False}
        for height in (400, None):
            height = height or self.driver.execute_script("return document.documentElement.scrollHeight")
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**size, "height": height})
        self.driver.save_screenshot(str(path))
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@contextmanager
def browser(url: str, directory: Path) -> Iterator[Browser]:
    """
    Start a browser for the site at ``url``; its profile goes into a directory.
    """
    binary, driver_path = find()
    options = Options()
    options.binary_location = binary
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--force-device-scale-factor=1",
        "--hide-scrollbars",
        f"--window-size={WIDTH},1000",
        f"--user-data-dir={directory}",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        yield Browser(driver, url)
    finally:
        driver.quit()
