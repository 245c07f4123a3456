"""A page that is served, and a browser to look at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elasticdl.page.port import listen
from elasticdl.page.recording import Recording
from elasticdl.page.server import PageServer, Tokens

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

TOKENS = Tokens("a" * 64, "b" * 64)


@dataclass
class SomeLogs:
    """Logs in memory."""

    found: dict[str, list[str]] = field(default_factory=lambda: {"master-0-1": ["one", "two", "three"]})
    error: OSError | None = None

    def processes(self) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        return sorted(self.found)

    def tail(self, process: str, lines: int) -> Sequence[str]:
        return self.found[process][-lines:]


@dataclass
class Served:
    """A page and what it is made of."""

    server: PageServer
    recording: Recording
    logs: SomeLogs


@pytest.fixture
def served() -> Iterator[Served]:
    recording, logs = Recording(0.0), SomeLogs()
    server = PageServer(recording, logs, TOKENS, listen(0))
    yield Served(server, recording, logs)
    server.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    """Debian's chromium without a window; skipped where there is none, a failure in CI."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        why = "chromium and its driver are not installed; `make setup-browser` installs them"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",  # tests may run as root
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path / 'profile'}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()
