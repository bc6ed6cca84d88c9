"""The demonstration succeeds when the guard works, and only then."""

import os
import subprocess
import sys
from pathlib import Path

from loopguard.demo import SETTINGS, demonstrate
from loopguard.runaway import Script

DETECTION = "LOOPGUARD_PROFILES__DEFAULT__LOOP_DETECTION__"
SHORT = Script(unit="void 0; ", loops=2, chars=20_000, delta_chars=64)


def test_the_command_shows_two_loops_cut_and_the_answer() -> None:
    """It ends before long with the answer, two aborts at word 3,065, character 12,261."""
    ended = subprocess.run(
        [sys.executable, "-m", "loopguard", "demo"],
        capture_output=True,
        text=True,
        timeout=45,  # it takes half of 15 s where nothing else runs
        check=False,
        env=os.environ | {"LOOPGUARD_SERVER__PORT": "1"},  # the demo has settings of its own
    )
    assert ended.returncode == 0
    assert ended.stderr == ""
    lines = [line.strip() for line in ended.stdout.splitlines()]
    assert "reading    300,000 characters" in lines
    cuts = [line for line in lines if line.endswith("at word 3,065, character 12,261")]
    assert [line.split()[:3] for line in cuts] == [["attempt", "1", "cut"], ["attempt", "2", "cut"]]
    why = "2 words repeated across 3000 consecutive words, 3065 words into the reply (3065 words, 12261 characters read before it was abandoned)"  # noqa: E501 - one sentence
    assert " ".join(lines).count(why) == 2
    assert any(line.startswith("discarded  2 replies: 6,130 words, 24,522") for line in lines)
    assert "answer     The file is written, and the result is right." in lines


async def test_an_armed_guard_leaves_no_fault() -> None:
    """With the settings of the demonstration nothing is left to be desired."""
    assert await demonstrate(SHORT, {}, lambda _: None) == []


async def test_a_disarmed_guard_is_a_fault() -> None:
    """Without a detector the caller gets the loop, and the demonstration says so."""
    faults = await demonstrate(SHORT, {f"{DETECTION}ENABLED": "false"}, lambda _: None)
    assert "the attempts are not two loops and a reply that completed" in faults
    assert "the model was not hung up on twice" in faults
    assert "the caller did not get the answer" in faults


async def test_a_cut_elsewhere_is_a_fault() -> None:
    """A rule that fires at another word is not the one that is shown."""
    faults = await demonstrate(SHORT, {f"{DETECTION}MIN_SATURATED_RUN": "2999"}, lambda _: None)
    assert faults == [
        "attempt 1 was cut at word 3064, character 12256",
        "attempt 2 was cut at word 3064, character 12256",
    ]


def test_a_fault_is_in_the_exit_status(tmp_path: Path) -> None:
    """A guard that did not work ends the command with status 1 and says what failed."""
    disarmed = tmp_path / "disarmed.toml"
    disarmed.write_text(SETTINGS.read_text().replace("enabled = true", "enabled = false"))
    program = (
        "import sys; from pathlib import Path; from loopguard import demo, runaway;"
        "demo.SETTINGS = Path(sys.argv[1]);"
        "demo.SCRIPT = runaway.Script(loops=2, chars=20_000);"
        "sys.exit(demo.run(None))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(disarmed)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "The guard failed: the caller did not get the answer." in ended.stdout
    assert "The guard worked" not in ended.stdout
