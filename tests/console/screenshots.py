"""The pictures of docs/console.md, taken of a real loopguard under a scripted load.

    python -m tests.console.screenshots [--folder docs/images]

The models, their replies and the ledger's day are made up, everything else is what the command
does. `pngquant`, where it is installed, makes the pictures a third as large.
"""

import argparse
import asyncio
import base64
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry

from loopguard.billing.database import Database
from loopguard.billing.entries import Abandoned, ExchangeRow, Price
from loopguard.billing.ledger import Ledger
from loopguard.core.detection.detector import Trip
from loopguard.metrics import Metrics
from tests.console.browser import Browser, chromium
from tests.console.operated import PROFILE, Operated, operated
from tests.fake_openrouter import Reply, Step, head, loop, pace, stall

REPOSITORY = Path(__file__).parents[2]
KEY = "0123456789abcdef"
MODELS = {  # its share of the exchanges, how many of a hundred loop, its cap, USD a token
    "deepseek/deepseek-v3.2": (5, 4, 65_536, "0.00000042"),
    "qwen/qwen3-coder": (4, 7, 65_536, "0.000001"),
    "google/gemini-2.5-flash": (3, 1, 65_535, "0.0000025"),
    "openai/gpt-5-mini": (2, 0, 128_000, "0.000002"),
    "local/finetune-7b": (1, 22, None, "0"),
}
PROSE = (REPOSITORY / "docs" / "design.md").read_text("utf-8")
EXCHANGES = 1_400
WIDE, NARROW = 1440, 390


def main() -> None:
    """Take every picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "docs" / "images")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as state, chromium() as browser:
        with operated(Path(state), [Reply("Good.")]) as ours:
            for view, height in (("now", 420), ("thrown-away", 700)):
                browser.size(WIDE, height)
                browser.show(ours.console, view)
                browser.until(
                    lambda: (
                        browser.all("#thrown-tiles dd") or browser.all("#view-now:not([hidden])")
                    )
                )
                take(browser, folder / f"console-{view}-empty.png")
        asyncio.run(a_day(f"sqlite:///{state}/ledger.db"))
        with under_load(Path(state)) as ours:
            for width, scheme in ((WIDE, "light"), (WIDE, "dark"), (NARROW, "light")):
                for name in views(browser, ours, width, scheme):
                    take(browser, folder / f"console-{name}-{width}-{scheme}.png")


def views(browser: Browser, ours: Operated, width: int, scheme: str) -> Iterator[str]:
    """Each view with something to see on it, as high as what is to be seen."""
    browser.prefer(scheme)
    begin(browser, ours, width, "now")
    browser.until(lambda: len(browser.all("#exchanges tr")) == len(RUNNING))
    yield fitting(browser, width, "now")
    begin(browser, ours, width, "thrown-away")
    browser.until(lambda: browser.all("#trips pre") and browser.all("#models td"))
    yield fitting(browser, width, "thrown-away")
    if width == NARROW:
        yield further_down(browser, "#trips", "trips")
    begin(browser, ours, width, "runs")
    browser.until(lambda: browser.all("#ledger-tiles div"))
    browser.fill("#look-up input", "nightly-42")
    browser.one("#look-up button").click()
    browser.until(lambda: browser.all("#run td"))
    browser.run("document.activeElement.blur()")
    yield fitting(browser, width, "runs")
    begin(browser, ours, width, "configuration")
    browser.until(lambda: browser.all("#profile option"))
    browser.fill('[data-path$="min_stale_chars"]', "3000")
    browser.fill(
        "#trial textarea", "It begins well enough. " + "Let me check that once more. " * 900
    )
    browser.run("document.querySelector('#trial button').click()")
    browser.until(lambda: browser.all("#trial-replies figure"))
    browser.until(lambda: "It would be launched." in browser.text("#draft"))
    yield fitting(browser, width, "configuration")
    if width == NARROW:
        yield further_down(browser, "#try", "try")


def begin(browser: Browser, ours: Operated, width: int, view: str) -> None:
    """Show a view on an ordinary screen."""
    browser.size(width, 700)
    browser.show(ours.console, view)


def fitting(browser: Browser, width: int, name: str) -> str:
    """Make the page as high as it is long, within reason, and let it settle."""
    long = browser.run("return document.documentElement.scrollHeight")
    browser.size(width, min(int(long), 1500 if width == WIDE else 2400))
    time.sleep(0.5)
    return name


def further_down(browser: Browser, selector: str, name: str) -> str:
    """Scroll to what is below the first screens of a phone."""
    browser.size(NARROW, 1300)
    browser.run("document.querySelector(arguments[0]).scrollIntoView()", selector)
    time.sleep(0.5)
    return name


def take(browser: Browser, path: Path) -> None:
    """Write what is seen."""
    taken = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    path.write_bytes(base64.b64decode(taken["data"]))
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext", ".png", str(path)], check=True)


RUNNING = (  # model, its script, relay, path
    ("openai/gpt-5-mini", "prose", "live", "chat/completions"),
    ("google/gemini-2.5-flash", "prose", "hold", "chat/completions"),
    ("deepseek/deepseek-v3.2", "sentence", "hold", "chat/completions"),
    ("qwen/qwen3-coder", "code", "live", "chat/completions"),
    ("local/finetune-7b", "trips", "hold", "chat/completions"),
    ("openai/gpt-5-mini", "silent", "live", "messages"),
)


def slowing(reply: Reply, chars: int) -> list[Step]:
    """A reply of which so much comes at once, and the rest word by word."""
    events = list(reply.events())
    at_once = chars // reply.delta_chars
    return [head(), *events[:at_once], pace(0.9), *events[at_once:]]


@contextmanager
def under_load(folder: Path) -> Iterator[Operated]:
    """A loopguard that has cut replies and has exchanges in every state."""
    profiles = PROFILE.replace('relay = "hold" ', 'log_sample = true\nrelay = "hold" ')
    with operated(
        folder, [Reply("Good.")], retry="initial_wait_s = 600", profiles=profiles
    ) as ours:
        ours.fake.models = [
            {
                "id": name,
                "top_provider": {"max_completion_tokens": cap},
                "pricing": {"completion": usd},
            }
            for name, (_, _, cap, usd) in MODELS.items()
        ]
        again = "Let me check that once more. "
        tested = "The tests pass now. I run them again to be sure.\n"
        prose = Reply(PROSE, delta_chars=40)
        sentence = loop(again, lead_in=PROSE[:900], delta_chars=20)
        code = loop("return void 0; } ", lead_in=PROSE[900:1500], delta_chars=17)
        ours.fake.scripts |= {
            "prose": [slowing(prose, 3000)],
            "sentence": [slowing(sentence, 3000)],
            "code": [slowing(code, 2600)],
            "trips": [loop(tested, lead_in=PROSE[:300])],
            "silent": [[head(), stall]],
        }
        asked = [
            ours.begin(model, script=script, path=path, Relay=relay, Run="nightly-42")
            for model, script, relay, path in RUNNING
        ]
        yield ours
        for each in asked:
            each.cancel()


async def a_day(url: str) -> None:
    """Write what a day of callers would have left in the ledger."""
    draw = random.Random(8)
    now_s = at_s = time.time() - 86_000
    ledger = Ledger(
        Database(url),
        Metrics(CollectorRegistry()),
        first_look_s=1.0,
        lease_s=60.0,
        clock=lambda: at_s,
    )
    ledger.start()
    names = list(MODELS)
    for number in range(EXCHANGES):
        at_s = now_s + number * 85_000 / EXCHANGES
        model = draw.choices(names, [MODELS[name][0] for name in names])[0]
        _, looping, _, usd = MODELS[model]
        evening = 3 if 0.6 < number / EXCHANGES < 0.75 else 1
        loops = sum(draw.random() < evening * looping / 100 for _ in range(2))
        chars = 0
        for attempt in range(1, loops + 1):
            written = draw.randrange(2_600, 14_000)
            chars += written
            trip = Trip(
                "stretch",
                draw.choice(["content", "content", "reasoning", "arguments"]),
                choice=0,
                words=written // 6,
                chars=written,
                seen=f"nothing new said in {written - 300} characters",
            )
            await ledger.record(
                Abandoned(
                    exchange=f"{number:032x}",
                    attempt=attempt,
                    generation=f"gen-{number}-{attempt}",
                    reason="looped",
                    rule=trip.rule,
                    channel=trip.channel,
                    sentence=trip.sentence,
                    sample=None,
                    model=model,
                    provider=None,
                    profile="default",
                    run="nightly-42" if number % 3 else None,
                    words=trip.words,
                    chars=trip.chars,
                    fingerprint=KEY if draw.random() < 0.95 else None,
                )
            )
            at_s += 2
            claim = await ledger.claim([KEY])
            if claim is not None and number < EXCHANGES - 8:
                tokens = written // 4
                await ledger.settle(
                    claim, Price(tokens * Decimal(usd), 900, tokens, cancelled=True)
                )
        ledger.record_exchange(
            ExchangeRow(
                exchange=f"{number:032x}",
                profile="default",
                model=model,
                run="nightly-42" if number % 3 else None,
                outcome="completed",
                attempts=loops + 1,
                loop_aborts=loops,
                loop_abort_words=chars // 6,
                loop_abort_chars=chars,
                prompt_tokens=900,
                completion_tokens=700,
                cost_usd=700 * Decimal(usd),
            )
        )
    await ledger.close()


if __name__ == "__main__":
    main()
