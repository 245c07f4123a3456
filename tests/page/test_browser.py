"""The page in a browser: nothing without the token, everything as text, readable on a telephone."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from elasticdl.control.protocol.status import EventKind
from elasticdl.page import server

from .conftest import TOKENS, Served
from .jobs import event, status

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

SECONDS = 30.0
HOSTILE = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"


def wait(browser: Chrome, script: str) -> Any:
    """Wait until a JavaScript expression is true in the page."""
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, SECONDS, 0.05).until(
        lambda chrome: chrome.execute_script(f"return {script}")
    )


def text(browser: Chrome) -> str:
    return str(browser.execute_script("return document.body.innerText"))


def fill(served: Served) -> None:
    now = time.time()
    for step in range(1, 6):
        served.recording.progress(step, 1.0 / step)
    served.recording.event(event(now - 9, EventKind.JOINED, "worker-0-1", "worker-0-1 has joined"))
    served.recording.event(event(now - 9, EventKind.JOINED, "worker-1-1", "worker-1-1 has joined"))
    served.recording.event(
        event(
            now,
            EventKind.EVALUATED,
            "",
            "evaluation of step 5",
            step=5,
            seconds=1.0,
            values=(("val_loss", 0.5),),
        )
    )
    served.recording.status(status(5))


def open_page(browser: Chrome, served: Served, token: str = TOKENS.page) -> None:
    browser.get(f"{served.server.address}/#token={token}")


def complaints(browser: Chrome) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]


def test_without_the_token_nothing_is_shown(browser: Chrome, served: Served) -> None:
    fill(served)
    browser.get(served.server.address)
    wait(browser, "document.readyState === 'complete'")
    assert "token is needed" in text(browser)
    assert browser.execute_script("return document.getElementById('job').hidden")
    assert "worker-0" not in browser.page_source


def test_another_token_shows_nothing(browser: Chrome, served: Served) -> None:
    fill(served)
    open_page(browser, served, "c" * 64)
    wait(browser, "document.getElementById('notice').textContent.includes('not the job')")
    assert "worker-0" not in browser.page_source


def test_the_token_leaves_the_address_and_a_reload_keeps_it(browser: Chrome, served: Served) -> None:
    fill(served)
    open_page(browser, served)
    wait(browser, "document.getElementById('name').textContent === 'job'")
    assert browser.current_url == f"{served.server.address}/"
    assert TOKENS.page not in browser.page_source
    browser.refresh()
    wait(browser, "document.getElementById('name').textContent === 'job'")


def test_all_of_it_is_shown_and_the_browser_has_nothing_to_complain_of(
    browser: Chrome, served: Served
) -> None:
    fill(served)
    open_page(browser, served)
    wait(
        browser,
        "document.querySelectorAll('#curves svg').length === 4 && document.querySelectorAll('#timeline rect').length > 0",
    )
    shown = text(browser)
    for part in (
        "25.0 %", "1 of 2", "1 of 1", "0.5", "val_loss, by step", "training loss, by step", "for 3 s",
        "worker-0-1 has joined",
    ):  # fmt: skip
        assert part in shown, part
    wait(browser, "document.getElementById('log').textContent === 'one\\ntwo\\nthree'")
    asked = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert asked
    assert all(name.startswith(served.server.address) for name in asked)
    assert complaints(browser) == []
    labels = browser.execute_script(
        "return [...document.querySelectorAll('[role=img]')].map((one) => one.ariaLabel)"
    )
    assert "val_loss, by step: 0.5 at step 5, lowest 0.5, highest 0.5" in labels
    assert "time line of 2 processes, last: worker-0-1 training, worker-1-1 training" in labels


def test_what_happens_is_seen_without_a_reload(browser: Chrome, served: Served) -> None:
    fill(served)
    open_page(browser, served)
    wait(browser, "document.querySelector('rect.training[data-process=\"worker-0-1\"]') !== null")
    served.recording.event(
        event(time.time(), EventKind.ENDED, "worker-0-1", "worker-0-1 has ended: killed by SIGKILL")
    )
    wait(
        browser,
        "document.querySelector('rect.lost[data-process=\"worker-0-1\"] title')?.textContent.includes('SIGKILL')",
    )
    wait(browser, "document.getElementById('events').innerText.includes('killed by SIGKILL')")
    served.recording.status(status(6, state="waiting"))
    wait(browser, "document.getElementById('state').textContent === 'waiting'")


def test_a_master_that_does_not_answer_is_said_to_be_away_until_it_does(
    browser: Chrome, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(served)
    open_page(browser, served)
    wait(browser, "document.getElementById('state').textContent === 'training'")
    is_back, answer = threading.Event(), served.recording.status_json

    def hang() -> dict[str, Any]:
        is_back.wait(SECONDS)
        return answer()

    monkeypatch.setattr(served.recording, "status_json", hang)
    wait(browser, "document.getElementById('notice').textContent.includes('elasticdl status job --open')")
    assert " s ago" in text(browser)
    assert browser.title == "job: no answer"
    is_back.set()
    wait(browser, "document.getElementById('notice').hidden")
    wait(browser, "document.getElementById('state').textContent === 'training'")


def test_a_job_that_ends_is_shown_whole_before_its_master_leaves(
    browser: Chrome, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_OPEN_SECONDS", "_PART_SECONDS"):
        monkeypatch.setattr(server, limit, SECONDS)
    fill(served)
    open_page(browser, served)
    wait(browser, "document.getElementById('log').textContent.includes('three')")
    served.logs.found["worker-1-1"] = ["ValueError: no"]
    served.recording.progress(6, 0.125)
    served.recording.event(event(time.time(), EventKind.FAILED, "worker-1-1", "worker-1-1 failed"))
    served.recording.status(status(6, state="failed"))
    served.server.part()
    served.server.close()
    wait(browser, "document.getElementById('notice').textContent.includes('job has ended')")
    shown = text(browser)
    for part in ("worker-1-1 failed", "0.125", "ValueError: no"):
        assert part in shown, part
    assert "time left" not in shown


def test_a_job_without_steps_says_nothing_of_them(browser: Chrome, served: Served) -> None:
    served.recording.event(event(time.time(), EventKind.JOINED, "worker-0-1", "worker-0-1 has joined"))
    seen = status(0, state="evaluating", loss=None)
    served.recording.status(replace(seen, records=64, wanted_servers=0))
    open_page(browser, served)
    wait(browser, "document.getElementById('key').textContent.includes('at work')")
    names = browser.execute_script(
        "return [...document.querySelectorAll('#figures dt')].map((one) => one.textContent)"
    )
    assert names == ["done", "time left", "records", "records per second", "workers"]


def test_names_and_texts_are_text(browser: Chrome, served: Served) -> None:
    fill(served)
    served.logs.found[HOSTILE] = [HOSTILE]
    served.recording.event(event(time.time(), EventKind.NOTE, "", HOSTILE))
    served.recording.event(event(time.time(), EventKind.EVALUATED, step=6, values=((HOSTILE, 1.0),)))
    open_page(browser, served)
    wait(browser, "document.getElementById('events').innerText.includes('onerror')")
    wait(browser, "document.getElementById('curves').innerText.includes('onerror')")
    assert browser.execute_script("return document.querySelectorAll('img, body script').length") == 0
    assert browser.title == "job: training"


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(browser: Chrome, served: Served, width: int, scheme: str) -> None:
    fill(served)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    open_page(browser, served)
    wait(browser, "document.querySelectorAll('#curves svg').length === 4")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    # The contrast of text that is read, by WCAG 2.2, 1.4.3.
    ratios = browser.execute_script(
        CONTRAST, ["#reason", "#figures dt", "#figures dd", "#events td.text", "#events td.time", "h2"]
    )
    for state in ("training", "evaluating", "waiting", "failed"):
        chosen = f"document.getElementById('state').className = 'state {state}';"
        ratios += browser.execute_script(chosen + CONTRAST, ["#state"])
    assert min(ratios) >= 4.5, ratios


CONTRAST = """
const light = (color) => {
  const parts = color.match(/[0-9.]+/g).slice(0, 3).map(Number).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const color = getComputedStyle(one).backgroundColor;
    if (!color.endsWith(", 0)")) return color;
  }
};
return arguments[0].map((selector) => {
  const element = document.querySelector(selector);
  const [low, high] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
});
"""
