"""The console in a real browser."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopguard.console import now
from tests.console.browser import Browser, chromium
from tests.console.operated import PROFILE, Operated, operated
from tests.fake_openrouter import Reply, head, loop, wait

VIEWS = ("now", "thrown-away", "runs", "configuration")
LOOP = "It begins. " + "void 0; " * 3000
MARKUP = "<img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>"
DOCUMENT = {
    "window_words": "256",
    "repeat_threshold": "32",
    "min_offenders": "2",
    "min_saturated_run": "3000",
    "max_response_chars": "250000",
}
AXE = Path(
    os.environ.get("LOOPGUARD_AXE", "~/.cache/loopguard-axe/node_modules/axe-core/axe.min.js")
).expanduser()
needs_axe = pytest.mark.skipif(not AXE.exists(), reason=f"no axe-core at {AXE}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(autouse=True)
def on_a_desk(browser: Browser) -> None:
    browser.size(1440)
    browser.prefer("light")


def field(profile: str, *keys: str) -> str:
    """The selector of a knob's control."""
    path = "\\a ".join(("profiles", profile, *keys))
    return f'[data-path="{path}"]'


def choose(browser: Browser, profile: str) -> None:
    """Choose the profile that is edited."""
    browser.one(f'#profile option[value="{profile}"]').click()


def scanned(config: Path, text: str, *flags: str) -> dict[str, Any]:
    """What `loopguard scan` makes of a text."""
    ended = subprocess.run(
        [sys.executable, "-m", "loopguard", "scan", "--json", "--config", config, *flags, "-"],
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    return json.loads(ended.stdout)  # type: ignore[no-any-return]  # an object


def test_arming_fills_the_knobs_in(browser: Browser, tmp_path: Path) -> None:
    """The switch of a profile that is not armed fills in the document's five figures."""
    with operated(tmp_path, [Reply("Good.")]) as ours:
        browser.show(ours.console, "configuration")
        browser.until(lambda: browser.all("#profile option"))
        choose(browser, "unarmed")
        knobs = {name: field("unarmed", "loop_detection", name) for name in DOCUMENT}
        assert {browser.one(knob).get_attribute("value") for knob in knobs.values()} == {""}
        browser.one("#arm-loop_detection").click()
        shown = {name: browser.one(knob).get_attribute("value") for name, knob in knobs.items()}
        assert shown == DOCUMENT
        browser.until(lambda: "It would be launched." in browser.text("#draft"))
        assert "abandoned after 3000 consecutive words" in browser.text("#sentence")


def test_a_missing_knob_is_refused_by_its_name(browser: Browser, tmp_path: Path) -> None:
    """A knob that is taken out of an armed rule is refused by profile and key, at its field too."""
    with operated(tmp_path, [Reply("Good.")]) as ours:
        browser.show(ours.console, "configuration")
        knob = field("default", "loop_detection", "min_offenders")
        browser.until(lambda: browser.all(knob))
        browser.fill(knob, "")
        refusal = "missing; an armed detector writes all five knobs"
        browser.until(lambda: refusal in browser.text("#draft"))
        assert (
            f"profile `default`: loop_detection.min_offenders: {refusal}"
            in browser.text("#draft").splitlines()
        )
        assert browser.one(knob).get_attribute("aria-invalid") == "true"
        described = str(browser.one(knob).get_attribute("aria-describedby")).split()
        assert refusal in [browser.text(f"#{name}") for name in described]
        assert not browser.one("#apply").is_enabled()
        steps = field("default", "escape", "steps")
        browser.fill(steps, "drop_seed, pray")
        browser.until(lambda: browser.one(steps).get_attribute("aria-invalid") == "true")
        browser.fill(steps, "")
        browser.fill(knob, "300")
        browser.until(lambda: "Warned of:" in browser.text("#draft"))
        assert "do not fit into window_words of 256" in browser.text("#draft")


def test_a_trial_marks_the_character_of_scan(browser: Browser, tmp_path: Path) -> None:
    """A text that loops is drawn and trips at scan's character, by the knobs on the page."""
    with operated(tmp_path, [Reply("Good.")]) as ours:
        browser.show(ours.console, "configuration")
        knob = field("default", "stretch_detection", "min_stale_chars")
        browser.until(lambda: browser.all(knob))
        browser.fill("#trial textarea", LOOP)
        for figure, flags in (("2350", ()), ("5000", ("--min-stale-chars", "5000"))):
            browser.fill(knob, figure)
            assert browser.one("#trial-outdated").is_displayed() == (figure == "5000")
            browser.one("#trial button").click()
            browser.until(lambda: "1 would trip" in browser.text("#trial-verdict"))
            at_char = scanned(ours.config, LOOP, *flags)["at_char"]
            assert f"at character {at_char:,}:" in browser.text("#trial-replies .tripped")
            assert len(browser.all("#trial-replies .plot polyline")) == 3
            assert len(browser.all("#trial-replies .plot line.trip")) == 1
            plot = browser.one("#trial-replies [role=slider]")
            assert plot.get_attribute("aria-valuemax") == str(at_char)
            browser.run("document.getElementById('trial-verdict').textContent = ''")
        lines = tmp_path / "replies.jsonl"
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in (LOOP, "Good.")))
        browser.one("#trial input[type=file]").send_keys(str(lines))
        browser.until(lambda: browser.text("#trial-verdict") == "2 replies, 1 would trip.")
        assert [card.text for card in browser.all("#trial-replies h4")] == [
            "replies.jsonl:1",
            "replies.jsonl:2",
        ]


def test_applying_changes_the_next_exchange(browser: Browser, tmp_path: Path) -> None:
    """A knob that was applied cuts the next exchange elsewhere; the file keeps its comments."""
    script = [loop(), Reply("Good."), loop(), Reply("Good.")]
    with operated(tmp_path, script) as ours:
        before = ours.config.read_text()
        browser.show(ours.console, "configuration")
        knob = field("default", "stretch_detection", "min_stale_chars")
        browser.until(lambda: browser.all(knob))
        assert ours.ask()[0] == 200
        browser.fill(knob, "9000")
        browser.until(lambda: browser.one("#apply").is_enabled())
        browser.one("#apply").click()
        browser.until(lambda: browser.text("#applied").startswith("Applied"))
        assert ours.ask()[0] == 200
        _, replies, _ = ours.request("GET", "/replies")
        assert [(reply["rule"], reply["chars"]) for reply in replies] == [
            ("frequency", 12_261),
            ("stretch", 3840),
        ]
        assert ours.config.read_text() == before.replace(
            "min_stale_chars = 2350 ", "min_stale_chars = 9000 "
        )
        assert ours.config.with_name("loopguard.toml.bak").read_text() == before
        assert "Nothing is changed." in browser.text("#draft")


def test_the_page_is_read_only_without_the_token(browser: Browser, tmp_path: Path) -> None:
    """Without the token a draft is tried and copied; with it, kept in the tab alone, applied."""
    with operated(tmp_path, [Reply("Good.")], server='admin_token = "sk-admin"') as ours:
        before = ours.config.read_text()
        browser.show(ours.console, "configuration")
        knob = field("default", "stretch_detection", "min_stale_chars")
        browser.until(lambda: browser.all(knob))
        assert "Read-only without the admin token" in browser.text("#standing")
        browser.fill(knob, "9000")
        browser.until(lambda: "It would be launched." in browser.text("#draft"))
        assert not browser.one("#apply").is_enabled()
        browser.one("#copy").click()
        copied = browser.until(lambda: browser.one("#toml").get_attribute("value"))
        assert (
            tomllib.loads(copied)["profiles"]["default"]["stretch_detection"]["min_stale_chars"]
            == 9000
        )
        for token in ("sk-wrong", "sk-admin"):
            assert ours.config.read_text() == before
            browser.fill("#token input", token)
            browser.one("#token button").click()
            if token == "sk-wrong":
                browser.until(lambda: "not the admin token" in browser.text("#token-fault"))
        browser.until(lambda: browser.one("#apply").is_enabled())
        assert not browser.one("#token").is_displayed()
        assert browser.run("return [localStorage.length, document.cookie]") == [0, ""]
        browser.one("#apply").click()
        browser.until(lambda: browser.text("#applied").startswith("Applied"))
        assert "min_stale_chars = 9000 " in ours.config.read_text()
        browser.run("sessionStorage.clear()")


def test_a_trip_appears_while_it_is_new(browser: Browser, tmp_path: Path) -> None:
    """A trip stands in the list within two seconds, and its model can be chosen."""
    with operated(tmp_path, [loop(), Reply("Good."), loop(), Reply("Good.")]) as ours:
        browser.show(ours.console, "thrown-away")
        browser.until(lambda: "No reply has been discarded." in browser.text("#trips-empty"))
        asked_at = time.monotonic()
        asked = ours.begin("first/model")
        browser.until(lambda: browser.all("#trips li"))
        assert time.monotonic() - asked_at < 2
        assert asked.result(20)[0] == 200
        assert "479 rounds of 8 characters" in browser.text("#trips li")
        assert "price owed" in browser.text("#trips li")
        browser.until(lambda: browser.all("#charts summary"))
        browser.one("#charts summary").click()
        assert ours.ask("other/model")[0] == 200
        browser.until(lambda: len(browser.all("#trips li")) == 2)
        browser.one('#filter option[value="first/model"]').click()
        browser.until(lambda: len(browser.all("#trips li")) == 1)
        assert "first/model" in browser.text("#trips li")
        browser.until(lambda: "other/model" in browser.text("#models"))
        assert len(browser.all("#charts details[open]")) == 1


def test_an_exchange_is_followed(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange in flight has a row with its levels, which go on by themselves, and is gone."""
    monkeypatch.setattr(now, "INTERVAL_S", 0.1)  # a second, for whoever waits for four
    near, far = asyncio.Event(), asyncio.Event()
    events = list(loop(chars=3000, delta_chars=500).events())
    script = [[head(), *events[:3], wait(near), *events[3:5], wait(far), *events[5:]]]
    with operated(tmp_path, script) as ours:
        browser.show(ours.console, "now")
        assert "Point an agent framework's base URL" in browser.text("#now-empty")
        asked = ours.begin("m/x", Run="nightly")
        browser.until(lambda: "1,000 of 250,001" in browser.text("#exchanges"))
        cells = [cell.text for cell in browser.all("#exchanges td")]
        assert cells[:5] == ["m/x\nrun nightly", "default", "chat", "holding", "1"]
        assert cells[6] == "1,000"
        ours.loop.call_soon_threadsafe(near.set)
        browser.until(lambda: "2,000 of 250,001" in browser.text("#exchanges .levels"))
        assert "suspected" in browser.text("#exchanges")
        told = browser.text("#exchanges .levels").splitlines()
        assert told[::2] == ["frequency", "stretch", "length"]
        level = float(told[3].removesuffix(" of 2,350").replace(",", ""))
        width = browser.run("return document.querySelector('.fill.stretch').style.inlineSize")
        assert float(width.rstrip("%")) == pytest.approx(100 * level / 2350, abs=0.1)
        ours.loop.call_soon_threadsafe(far.set)
        assert asked.result(20)[0] == 200
        browser.until(lambda: not browser.all("#exchanges tr"))


def test_markup_stays_text(browser: Browser, tmp_path: Path) -> None:
    """A model's name, a run, a sample and a pasted reply that are markup are shown as text."""
    profiles = PROFILE.replace('relay = "hold" ', 'log_sample = true\nrelay = "hold" ')
    gate = asyncio.Event()
    script = [loop(MARKUP), [head(), wait(gate), *Reply("Good.").events()]]
    with operated(tmp_path, script, profiles=profiles) as ours:
        asked = ours.begin(MARKUP, Run=MARKUP)
        browser.show(ours.console, "now")
        browser.until(lambda: browser.all("#exchanges tr"))
        assert browser.text("#exchanges td") == f"{MARKUP}\nrun {MARKUP}"
        browser.until(lambda: MARKUP in browser.text("#latest-trip"))
        browser.show(ours.console, "thrown-away")
        browser.until(lambda: browser.all("#trips pre"))
        assert MARKUP[:20] in browser.text("#trips pre") * 2
        assert browser.text("#trips .name") == MARKUP
        ours.loop.call_soon_threadsafe(gate.set)
        assert asked.result(20)[0] == 200
        browser.until(lambda: browser.all("#models td"))
        assert browser.text("#models .name") == MARKUP
        browser.show(ours.console, "runs")
        browser.fill("#look-up input", MARKUP)
        browser.one("#look-up button").click()
        browser.until(lambda: browser.all("#run h4"))
        assert browser.text("#run h4") == MARKUP
        assert "loopAborts\n1\nreplies cut" in browser.text("#run dl")
        browser.show(ours.console, "configuration")
        browser.fill("#trial textarea", MARKUP * 300)
        browser.one("#trial button").click()
        browser.until(lambda: browser.all("#trial-replies pre"))
        assert MARKUP[:20] in browser.text("#trial-replies pre") * 2
        assert browser.all("img, main script, iframe") == []
        assert browser.driver.title == "Configuration: loopguard console"


def test_the_page_is_used_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    """From the address bar on, keys alone arm a profile, change a knob and apply both."""
    keys = pytest.importorskip("selenium.webdriver").Keys
    chains = pytest.importorskip("selenium.webdriver").ActionChains

    def press(*pressed: str) -> None:
        chains(browser.driver).send_keys(*pressed).perform()

    def focused(what: str) -> Any:
        return browser.run(f"return document.activeElement.{what}")

    def go_to(found: str) -> None:
        for _ in range(80):
            press(keys.TAB)
            if browser.run("return document.activeElement.matches(arguments[0])", found):
                return
        pytest.fail(f"{found} is never reached")

    with operated(tmp_path, [Reply("Good.")]) as ours:
        browser.show(ours.console, "now")
        press(keys.TAB)
        assert focused("textContent") == "Skip to the view"
        press(keys.ENTER)
        assert focused("id") == "view"
        browser.show(ours.console, "now")
        go_to('a[href="#configuration"]')
        press(keys.ENTER)
        browser.until(lambda: browser.all("#profile option"))
        assert focused("id") == "view"
        go_to("#profile")
        press("u")
        go_to("#arm-loop_detection")
        press(keys.SPACE)
        go_to(field("unarmed", "loop_detection", "min_saturated_run"))
        outline = browser.run("return getComputedStyle(document.activeElement).outlineWidth")
        assert outline == "3px"
        press(keys.BACKSPACE, "500")  # the key that came here has selected it
        browser.until(lambda: browser.one("#apply").is_enabled())
        go_to("#apply")
        press(keys.ENTER)
        browser.until(lambda: browser.text("#applied").startswith("Applied"))
        assert "min_saturated_run = 500" in ours.config.read_text()


def walk(browser: Browser, ours: Operated) -> Iterator[str]:
    """Each view, with something to see on it."""
    browser.show(ours.console, "now")
    browser.until(lambda: browser.all("#exchanges tr"))
    yield "now"
    browser.show(ours.console, "thrown-away")
    browser.until(lambda: browser.all("#trips li"))
    browser.until(lambda: browser.all("#models td"))
    browser.run("document.querySelector('#charts summary').click()")
    yield "thrown-away"
    browser.show(ours.console, "runs")
    browser.fill("#look-up input", "nightly")
    browser.one("#look-up button").click()
    browser.until(lambda: browser.all("#run td"))
    yield "runs"
    browser.show(ours.console, "configuration")
    browser.fill("#trial textarea", LOOP)
    browser.one("#trial button").click()
    browser.until(lambda: browser.all("#trial-replies figure"))
    browser.fill(field("default", "loop_detection", "min_offenders"), "")
    browser.until(lambda: "Refused" in browser.text("#draft"))
    yield "configuration"


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Operated]:
    """A loopguard that has cut a reply and has an exchange in flight."""
    gate = asyncio.Event()
    events = list(loop(chars=3000, delta_chars=500).events())
    script = [loop(), Reply("Good."), [head(), *events[:6], wait(gate), *events[6:]]]
    profiles = PROFILE.replace('relay = "hold" ', 'log_sample = true\nrelay = "hold" ')
    with operated(tmp_path, script, profiles=profiles) as ours:
        assert ours.ask("deepseek/deepseek-v3.2", Run="nightly")[0] == 200
        asked = ours.begin("qwen/qwen3-coder")
        yield ours
        ours.loop.call_soon_threadsafe(gate.set)
        assert asked.result(20)[0] == 200


def test_nothing_is_asked_of_another(browser: Browser, busy: Operated) -> None:
    """Every request of every view goes to the page's own origin, and its policy is never broken."""
    browser.driver.get_log("browser")
    browser.requests()
    asked: list[str] = []
    for _ in walk(browser, busy):
        asked += browser.requests()
        assert browser.run("return window.violations") == []
    origin = busy.console.removesuffix("/console")
    assert len(asked) > 20
    assert {url for url in asked if not url.startswith(("about:", f"{origin}/"))} == set()
    complaints = [line["message"] for line in browser.driver.get_log("browser")]
    # A refused draft is answered with 422, which the browser tells.
    assert [line for line in complaints if "status of 422" not in line] == []


def serious(browser: Browser) -> list[tuple[str, str, list[str]]]:
    """What axe-core finds serious or critical on the page as it is now, in which light, where."""
    browser.run(AXE.read_text() + "; window.axe = axe;")
    found = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        violations = browser.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, { resultTypes: ['violations'] }).then("
            "(result) => done(result.violations), (error) => done(String(error)));"
        )
        found += [
            (scheme, each["id"], [node["html"][:120] for node in each["nodes"]])
            for each in violations
            if each["impact"] in ("serious", "critical")
        ]
    return found


@needs_axe
def test_axe_finds_nothing_serious(browser: Browser, busy: Operated) -> None:
    """axe-core finds no serious and no critical violation on any view, light and dark."""
    for view in walk(browser, busy):
        assert serious(browser) == [], view


@needs_axe
def test_axe_finds_nothing_serious_where_nothing_is(browser: Browser, tmp_path: Path) -> None:
    """Nor does it on the views of a loopguard that has served nothing yet."""
    with operated(tmp_path, []) as ours:
        for view in VIEWS:
            browser.show(ours.console, view)
            assert serious(browser) == [], view


def test_the_page_fits(browser: Browser, busy: Operated) -> None:
    """On a phone and on a desk no view is wider than the page."""
    for view in walk(browser, busy):
        for width in (390, 1440):
            browser.size(width)
            wider = browser.run(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wider == 0, (view, width)


def test_every_file_is_the_packages_own() -> None:
    """No address of elsewhere, no inline script and no way from text to markup is in the files."""
    folder = Path(__file__).parents[2] / "loopguard" / "console" / "static"
    for path in folder.iterdir():
        text = path.read_text("utf-8")
        assert set(re.findall(r"https?://[^\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\bon\w+=|style=", text)
