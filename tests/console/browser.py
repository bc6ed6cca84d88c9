"""Debian's chromium, and what is asked of a page again and again."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PATIENCE_S = 30.0

_WITNESS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


class Browser:
    """One tab.

    Attributes:
        driver: selenium's.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WITNESS})

    def show(self, console: str, view: str) -> None:
        """Load a view anew."""
        self.driver.get("about:blank")
        self.driver.get(f"{console}/#{view}")
        self.until(lambda: self.text("#connection") == "live")

    def size(self, width: int, height: int = 1000) -> None:
        """Set what the page has for a screen."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Set the colour scheme: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def all(self, selector: str) -> list[Any]:
        """The elements that match."""
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        """The first element that matches."""
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        """The text of the first element that matches, as it is seen; read at one moment."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText", selector))

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def fill(self, selector: str, text: str) -> None:
        """Put a text into a control at once, as pasting does."""
        self.run(
            "arguments[0].value = arguments[1];"
            'arguments[0].dispatchEvent(new Event("input", { bubbles: true }));',
            self.one(selector),
            text,
        )

    def until(self, found: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """Wait for something to be true, and return it."""
        wait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
        return wait(self.driver, patience_s, poll_frequency=0.05).until(lambda _: found())

    def requests(self) -> list[str]:
        """The URLs that were asked for since the last call."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it; the test is skipped where it is not installed."""
    driver, binary = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or binary is None:
        pytest.skip("neither chromium nor chromium-driver is installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as chrome:
        yield Browser(chrome)
