"""Take the pictures of a job's page in the guide: a real job, disturbed. Writes `docs/guides/watching-*.png`.

Run it by hand (`python -m docs.screenshots`) when the page looks different; `make setup-browser` installs what it needs. Nothing is edited.
"""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from sklearn.datasets import load_digits

from elasticdl.cluster.local import place as places
from elasticdl.job import page

GUIDES = Path(__file__).resolve().parent / "guides"
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
NAME = "digits"
SECONDS = 120.0
"""Longest wait for anything."""
PICTURES = ((1280, 1440, "light"), (400, 1240, "dark"))
"""Width and height in pixels, and the colours, of each."""
MODEL = """
import time

import numpy as np

from elasticdl.reference import SGD, Callback, Softmax


def custom_model():
    return Softmax(64, 10)


def optimizer():
    return SGD(0.05)


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return rows[:, :64] / 16, rows[:, 64].astype(np.int64)


def eval_metrics_fn():
    return {"accuracy": lambda labels, outputs: labels == np.argmax(outputs, axis=1)}


class Pace(Callback):
    def on_step_end(self, logs):
        time.sleep(0.2)


def callbacks():
    return [Pace()]
"""
"""At the pace of a larger model."""

ALL_TRAIN = """
const states = [...document.querySelectorAll("#members tbody td:nth-child(2)")].map((one) => one.textContent);
return states.length === 3 && states.every((state) => state === "training" || state === "evaluating");
"""


def wait(what: str, ask: Callable[[], object]) -> None:
    """Wait until an answer is true."""
    end = time.monotonic() + SECONDS
    while not ask():
        if time.monotonic() > end:
            raise SystemExit(f"waited {SECONDS:.0f} s for {what}")
        time.sleep(0.2)


def begin(folder: Path) -> None:
    """Make data and a model, and begin a job."""
    pixels, labels = load_digits(return_X_y=True)
    rows = [
        ",".join(str(int(value)) for value in (*row, label))
        for row, label in zip(pixels, labels, strict=True)
    ]
    header = ",".join([*(f"pixel{number}" for number in range(64)), "label"])
    for name, part in (("train", rows[:1500]), ("heldout", rows[1500:])):
        (folder / f"{name}.csv").write_text("\n".join((header, *part)) + "\n")
    (folder / "digits.py").write_text(MODEL)
    flags = ["--model_def=digits.custom_model", "--training_data=train.csv", "--validation_data=heldout.csv"]
    flags += ["--num_workers=3", "--num_epochs=40", "--minibatch_size=32", "--evaluation_steps=20"]
    subprocess.run([ELASTICDL, "train", f"--job_name={NAME}", *flags, "--detach"], cwd=folder, check=True)


def open_browser() -> Chrome:
    """Return Debian's chromium without a window."""
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    return Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def take(browser: Chrome, width: int, height: int, scheme: str) -> None:
    """Write a picture of what is open."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    time.sleep(3)  # the page draws for this width
    picture = browser.execute_cdp_cmd("Page.captureScreenshot", {})
    # A page has few colours; this way of choosing them keeps those of small spots, too.
    image = (
        Image.open(io.BytesIO(base64.b64decode(picture["data"])))
        .convert("RGB")
        .quantize(256, Image.Quantize.FASTOCTREE)
    )
    image.save(GUIDES / f"watching-{width}.png", optimize=True)


def main() -> None:
    """Take all of them."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"] = f"{name}/state"
        begin(Path(name))
        place = places.find(NAME)
        address = page.await_address(place)
        if address is None:
            raise SystemExit("the job has ended")
        browser = open_browser()
        try:
            browser.get(address)
            for role in ("worker", "master", "worker"):
                wait("all workers", lambda: browser.execute_script(ALL_TRAIN))
                subprocess.run([ELASTICDL, "chaos", NAME, f"--kill={role}", "--count=1"], check=True)
            wait("all workers", lambda: browser.execute_script(ALL_TRAIN))
            for width, height, scheme in PICTURES:
                take(browser, width, height, scheme)
        finally:
            browser.quit()
            subprocess.run([ELASTICDL, "stop", NAME], check=True)
            wait("the end of the job", lambda: not place.running())


if __name__ == "__main__":
    main()
