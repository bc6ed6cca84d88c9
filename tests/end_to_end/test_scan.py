"""``loopguard scan``: its formats, options, exit status and page."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from loopguard.core.detection.frequency import FrequencyKnobs
from loopguard.core.detection.stretch import StretchKnobs
from tests.end_to_end.conftest import Guard
from tests.end_to_end.refusal_cases import loopguard
from tests.fake_openrouter import Message, Reply, loop

LOOP = "void 0; " * 3000
SENTENCE = "Now I run it and look at the result.\n"
SHARED = Path(os.environ.get("LOOPGUARD_SHARED", Path(__file__).parents[3] / "shared"))
MARKUP = (
    "<img src=x onerror=\"document.title='ran'\"></script><script>document.title='ran'</script>"
)


@pytest.fixture
def loop_file(tmp_path: Path) -> str:
    path = tmp_path / "loop.txt"
    path.write_text(LOOP)
    return str(path)


def scan(*words: str) -> list[dict[str, Any]]:
    """The figures of each reply."""
    ended = loopguard(["scan", "--json", *words])
    assert ended.stderr == ""
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_the_figures_of_the_document(loop_file: str) -> None:
    """The document's loop trips at its word and character, in the keys that are promised."""
    (reply,) = scan("--profile", "document", loop_file)
    assert reply == {
        "id": loop_file,
        "chars": 24_000,
        "words": 6000,
        "tripped": True,
        "rule": "frequency",
        "at_char": 12_261,
        "at_word": 3065,
        "onset_char": None,
        "period_chars": 8,
        "peaks": {
            "frequency": {"peak": 3000, "floor": 3000},
            "length": {"peak": 12_261, "floor": 250_001},
        },
    }


def test_a_person_reads_the_sentence(loop_file: str) -> None:
    """Without --json the trip's own sentence is shown, with the peaks and a sum."""
    ended = loopguard(["scan", "--profile", "document", loop_file])
    assert ended.stdout.splitlines() == [
        (
            f"{loop_file}: tripped by frequency in content: 2 words repeated across 3000 "
            "consecutive words, 3065 words into the reply (3065 words, 12261 characters read "
            "before it was abandoned), period 8 characters"
        ),
        "    peaks: frequency 3000 of 3000, length 12261 of 250001",
        "1 replies, 1 tripped (1 by frequency)",
    ]
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("channel", ["content", "reasoning", "arguments"])
async def test_it_trips_where_the_proxy_does(guarded: Guard, channel: str, tmp_path: Path) -> None:
    """A recorded stream trips by the rule, at the word and the character of the proxy's trip."""
    reply = loop(SENTENCE.replace("\n", " "), lead_in="It begins. ", channel=channel, chars=20_000)  # type: ignore[arg-type]  # one of the three
    (tmp_path / "loop.sse").write_bytes(reply.stream())
    async with guarded([reply, Reply("Good.")]) as ours, ours.client() as client:
        await client.chat.completions.create(
            model="m/x", messages=[{"role": "user", "content": "hello"}]
        )
        attempt = ours.records[0].attempts[0]
    (scanned,) = scan(str(tmp_path / "loop.sse"))
    assert attempt.outcome == "looped"
    assert [scanned["rule"], scanned["at_char"], scanned["at_word"]] == [
        attempt.rule,
        attempt.chars,
        attempt.words,
    ]


@pytest.mark.parametrize("form", ["text", "jsonl", "json", "sse"])
@pytest.mark.parametrize("zipped", [False, True])
def test_every_format_gives_the_same_verdict(form: str, zipped: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """One reply trips at one character, in whatever form it was saved, gzipped or not."""
    reply = Reply(Message(LOOP))
    content = {
        "text": LOOP.encode(),
        "jsonl": json.dumps({"text": LOOP}).encode() + b"\n",
        "json": json.dumps(reply.whole(), indent=1).encode(),
        "sse": reply.stream(),
    }[form]
    path = tmp_path / "saved"
    path.write_bytes(gzip.compress(content) if zipped else content)
    (found,) = scan(str(path))
    assert (found["rule"], found["at_char"], found["chars"]) == ("stretch", 3840, 24_000)
    (told,) = scan(str(path), "--format", form)
    assert told == found


def test_the_standard_input_is_a_file() -> None:
    """A dash reads what is piped in."""
    ended = subprocess.run(
        [sys.executable, "-m", "loopguard", "scan", "--json", "-"],
        input=gzip.compress(LOOP.encode()),
        capture_output=True,
        check=False,
    )
    assert json.loads(ended.stdout)["at_char"] == 3840
    assert json.loads(ended.stdout)["id"] == "-"


def test_the_field_is_named(tmp_path: Path) -> None:
    """--field reads the field that it names."""
    path = tmp_path / "replies.jsonl"
    path.write_text(json.dumps({"id": "a", "text": "short", "said": LOOP}))
    assert [reply["tripped"] for reply in scan(str(path))] == [False]
    assert [reply["tripped"] for reply in scan(str(path), "--field", "said")] == [True]


def test_the_exit_status_tells_what_was_found(loop_file: str, tmp_path: Path) -> None:
    """0 where nothing tripped, 1 where something did, 2 where something could not be read."""
    fine = tmp_path / "fine.txt"
    fine.write_text("All is well.")
    assert loopguard(["scan", str(fine)]).returncode == 0
    assert loopguard(["scan", str(fine), loop_file]).returncode == 1
    absent = str(tmp_path / "absent.txt")
    ended = loopguard(["scan", "--json", absent, loop_file])
    assert (ended.returncode, ended.stderr) == (2, f"{absent}: No such file or directory\n")
    assert json.loads(ended.stdout)["tripped"]


def test_faults_name_file_and_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A line that is no reply is told on stderr, and those around it are judged."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\nno\n{"other": 1}\n{"text": "b"}\n')
    ended = loopguard(["scan", "--json", str(path)])
    assert ended.stderr.splitlines() == [
        f"{path}:2: no JSON",
        (
            f"{path}:3: no text in text, reply, output, content, response, completion; "
            "--field names another"
        ),
    ]
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == [
        f"{path}:1",
        f"{path}:4",
    ]
    assert ended.returncode == 2


def test_jobs_change_nothing(tmp_path: Path) -> None:
    """Several processes print the same lines and write the same page."""
    path = tmp_path / "replies.jsonl"
    rows = [{"id": n, "text": SENTENCE * n + "A word more. " * (n % 7)} for n in range(120)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "no\n")
    ended = [
        loopguard(["scan", str(path), "--jobs", jobs, "--html", str(tmp_path / f"{jobs}.html")])
        for jobs in ("1", "2")
    ]
    assert ended[0].stdout == ended[1].stdout
    assert ended[0].stderr == ended[1].stderr == f"{path}:121: no JSON\n"
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()


def test_every_knob_is_an_option(loop_file: str, tmp_path: Path) -> None:
    """Each knob of each rule can be tried, and is what the profile would then say."""
    shipped = tomllib.loads(loopguard(["check-config"]).stdout)["profiles"]["default"]
    for table, knobs in (
        ("loop_detection", FrequencyKnobs),
        ("stretch_detection", StretchKnobs),
    ):
        for field in fields(knobs):
            words = [f"--{field.name.replace('_', '-')}", str(shipped[table][field.name])]
            (reply,) = scan(loop_file, *words)
            assert reply["at_char"] == 3840
    assert scan(loop_file, "--min-stale-chars", "9000")[0]["at_char"] == 12_261
    assert scan(loop_file, "--no-stretch-detection", "--min-saturated-run", "0")[0] == {
        **scan(loop_file, "--profile", "document", "--min-saturated-run", "0")[0]
    }
    assert scan(loop_file, "--no-loop-detection")[0]["peaks"].keys() == {"stretch"}


def test_every_option_is_documented() -> None:
    """The documentation names every option of the command."""
    options = set(re.findall(r"--[a-z][a-z-]+", loopguard(["scan", "--help"]).stdout))
    documented = (Path(__file__).parents[2] / "docs" / "scan.md").read_text("utf-8")
    assert len(options) > 15
    assert options - {"--help"} <= set(re.findall(r"--[a-z-]+", documented))


def test_knobs_are_judged_as_at_the_launch(loop_file: str) -> None:
    """A knob is refused in the words of the launch, and the option is named; so is a warning."""
    ended = loopguard(["scan", loop_file, "--window-words", "0", "--data-weight", "much"])
    assert sorted(ended.stderr.splitlines()) == [
        "profile `default`: loop_detection.window_words: must be 1 or more (set by --window-words)",
        "profile `default`: stretch_detection.data_weight: must be a number (set by --data-weight)",
    ]
    assert (ended.returncode, ended.stdout) == (2, "")
    ended = loopguard(["scan", loop_file, "--profile", "document", "--min-stale-chars", "9"])
    assert ended.stderr == "profile `document`: stretch_detection.enabled: missing\n"
    ended = loopguard(["scan", loop_file, "--min-offenders", "300"])
    assert ended.stderr.startswith("warning: profile `default`: loop_detection.min_offenders: ")


def test_profiles_and_files_are_refused_by_name(loop_file: str, tmp_path: Path) -> None:
    """A profile that is not there, or that arms nothing, is refused; so is a page's lost folder."""
    config = tmp_path / "loopguard.toml"
    config.write_text("[profiles.default]\n")
    for words, line in (
        (["--profile", "nobody"], "--profile: no profile is named `nobody`"),
        (["--config", str(config)], "profile `default`: no rule is armed to judge by"),
        (["--html", f"{tmp_path}/no/x.html"], f"{tmp_path}/no/x.html: No such file or directory"),
    ):
        ended = loopguard(["scan", loop_file, *words])
        assert (ended.returncode, ended.stderr, ended.stdout) == (2, f"{line}\n", "")
    assert loopguard(["scan", loop_file, "--jobs", "0"]).returncode == 2


def test_a_configuration_is_read(loop_file: str, tmp_path: Path) -> None:
    """--config and --profile choose the knobs, and the environment stands over the file."""
    config = tmp_path / "loopguard.toml"
    config.write_text(
        "[profiles.default]\n[profiles.my-own.loop_detection]\nenabled = true\n"
        "window_words = 256\nrepeat_threshold = 32\nmin_offenders = 2\n"
        "min_saturated_run = 500\nmax_response_chars = 0\n"
    )
    words = ["scan", loop_file, "--json", "--config", str(config), "--profile", "my-own"]
    variable = "LOOPGUARD_PROFILES__MY_OWN__LOOP_DETECTION__MIN_SATURATED_RUN"
    runs = [
        json.loads(loopguard([*words, *more], environ).stdout)["peaks"]["frequency"]["floor"]
        for more, environ in (
            ([], {}),
            ([], {variable: "600"}),
            (["--min-saturated-run", "700"], {variable: "600"}),
        )
    ]
    assert runs == [500, 600, 700]


def test_the_bar_is_shown_when_asked(loop_file: str) -> None:
    """--progress shows the bar where no terminal is, and takes it away at the end."""
    assert loopguard(["scan", loop_file]).stderr == ""
    shown = loopguard(["scan", loop_file, "--progress"]).stderr
    assert "[########################] 100%  1 replies, 1 tripped" in shown
    assert shown.endswith("\x1b[K")


def test_a_reader_may_leave(tmp_path: Path) -> None:
    """A reader that has seen enough ends the scan without a word of complaint."""
    path = tmp_path / "replies.jsonl"
    path.write_text('{"text": "a"}\n' * 20_000)
    with subprocess.Popen(
        [sys.executable, "-m", "loopguard", "scan", "--json", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as scanning:
        assert scanning.stdout is not None
        assert scanning.stderr is not None
        scanning.stdout.readline()
        scanning.stdout.close()
        assert scanning.stderr.read() == b""


def test_the_corpus_is_scanned() -> None:
    """Every reply of the corpus of loops is read, and most of those that are long enough trip."""
    path = SHARED / "corpus" / "real_loops.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no corpus at {path}")
    replies = scan(str(path))
    assert len(replies) == 237
    assert sum(reply["tripped"] for reply in replies) > 60


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page of forty replies that passed, one that tripped, and one that is full of markup."""
    rows = [{"id": f"fine {n}", "text": f"All is well with {n}. " * 20} for n in range(40)]
    rows.append({"id": "loop", "text": "It begins. " + SENTENCE * 300})
    rows.append({"id": MARKUP, "text": MARKUP * 300})
    replies = tmp_path / "replies.jsonl"
    replies.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "report.html"
    assert loopguard(["scan", str(replies), "--html", str(path)]).returncode == 1
    return path


def test_the_page_needs_nothing_else(page: Path) -> None:
    """No address, no import and no markup of a reply stands in the page."""
    text = page.read_text("utf-8")
    ours = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    assert not re.search(r"\b(?:src|href|action)\s*=|@import|url\(|\bimport\b", ours)
    assert set(re.findall(r"https?://[^\"\s]+", ours)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    assert "<img" not in text
    assert text.count("</script>") == text.count("<script") == 3


@pytest.fixture
def browser() -> Iterator[Any]:
    """Debian's chromium; the test is skipped where it is not installed."""
    driver, binary = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or binary is None:
        pytest.skip("neither chromium nor chromium-driver is installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as chrome:
        yield chrome


def test_the_page_shows_curves_and_texts(page: Path, browser: Any) -> None:
    """Curves are drawn and the trip is marked; what is markup in a reply is text in the page."""
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []
    assert browser.title == "loopguard scan: profile default"
    assert "42 replies, 2 of them tripped" in browser.find_element("id", "verdict").text

    browser.find_element("name", "show").send_keys("that t")
    first, second = browser.find_elements("css selector", "article")
    assert [card.find_element("css selector", "h3").text for card in (first, second)] == [
        "loop",
        MARKUP,
    ]
    assert "tripped by stretch at character 2,560: nothing new said" in first.text
    assert first.find_element("css selector", "pre").text in SENTENCE * 2
    assert MARKUP[:20] in second.find_element("css selector", "pre").text * 2
    levels = first.find_elements("css selector", ".plot polyline")
    assert len(levels) == 3
    assert max(len(level.get_attribute("points").split()) for level in levels) > 5
    assert len(first.find_elements("css selector", ".plot line.trip, .plot rect.loop")) == 2
    assert browser.find_elements("css selector", "img, article script") == []
    assert browser.get_log("browser") == []


def test_the_page_is_used_by_keyboard(page: Path, browser: Any) -> None:
    """Arrow keys read a curve, more cards come when asked for, an id finds its card."""
    keys = pytest.importorskip("selenium.webdriver").Keys
    browser.get(page.as_uri())
    assert len(browser.find_elements("css selector", "article")) == 30
    browser.find_element("id", "more").send_keys(keys.ENTER)
    assert len(browser.find_elements("css selector", "article")) == 42
    assert not browser.find_element("id", "more").is_displayed()

    browser.find_element("name", "id").send_keys("loop")
    (card,) = browser.find_elements("css selector", "article")
    plot = card.find_element("css selector", "[role=slider]")
    plot.send_keys(keys.HOME)
    assert plot.get_attribute("aria-valuenow") == "256"
    plot.send_keys(keys.ARROW_RIGHT)
    assert plot.get_attribute("aria-valuenow") == "512"
    reading = card.find_element("css selector", ".reading").text
    assert reading.startswith("at character 512: frequency 0 of 3,000 words; stretch ")
    assert plot.get_attribute("aria-valuetext") == reading


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits(page: Path, browser: Any, width: int) -> None:
    """On a phone and on a desk nothing is wider than the page."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    root = "document.documentElement"
    assert browser.execute_script(f"return {root}.scrollWidth == {root}.clientWidth")
