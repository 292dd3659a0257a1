"""Debian's headless chromium, for tests that use a page as a person does."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.servers.processes import check_is_listed

__all__ = ["PICTURES", "chromium", "picture", "size"]

PICTURES = os.environ.get("THROTTLEKIT_SCREENSHOTS")
"""The folder for the pictures of the documentation. None: no pictures are taken."""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser that keeps its log. Skips the test if no browser is installed."""
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    check_is_listed("browser")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-proxy-server",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        "--lang=en-GB",
    ):
        options.add_argument(argument)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "localhost,127.0.0.1")
        patch.setenv("no_proxy", "localhost,127.0.0.1")
        patch.setenv("TZ", "UTC")
        try:
            browser = webdriver.Chrome(options=options, service=Service(driver))
        except WebDriverException as error:
            pytest.skip(f"chromium does not start: {error.msg}")
        yield browser
        browser.quit()


def size(browser: Any, width: int, height: int, *, phone: bool = False, dark: bool = False) -> None:
    """Set the size of the screen, and whether the system has a dark theme."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def picture(browser: Any, name: str) -> None:
    """Take a picture for the documentation, if `PICTURES` is set."""
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(str(Path(PICTURES) / f"{name}.png"))
