"""What the ledger says of what was thrown away."""

from decimal import Decimal
from pathlib import Path

import pytest

from loopguard.billing.market import Terms
from loopguard.console.thrown_away import saved_usd
from tests.console.operated import PROFILE, operated
from tests.fake_openrouter import Reply, head, loop, stall


def test_a_trip_outlives_a_restart(tmp_path: Path) -> None:
    """What a trip said is the ledger's, and its sample with it where the profile allows one."""
    default, _, _ = PROFILE.partition("[profiles.unarmed]")
    allowed = default.replace("profiles.default", "profiles.sampled").replace(
        'relay = "hold" ', 'log_sample = true\nrelay = "hold" '
    )
    script = [loop(), Reply("Good.")]
    with operated(tmp_path, [*script, *script], profiles=default + allowed) as ours:
        for profile in ("default", "sampled"):
            assert ours.ask("m/x", Profile=profile)[0] == 200
    with operated(tmp_path, [], profiles=default + allowed) as ours:
        told = ours.request("GET", "/replies")[1]
    assert [reply["profile"] for reply in told] == ["sampled", "default"]
    for reply in told:
        assert (reply["rule"], reply["channel"], reply["chars"]) == ("stretch", "content", 3840)
        assert reply["sentence"].startswith("nothing new said in 3816 characters")
        assert ("void 0; " in (reply["sample"] or "")) == (reply["profile"] == "sampled")


@pytest.mark.parametrize(
    ("loops", "tokens", "saved"), [(2, 500, "1.5"), (0, 0, "0"), (1, 5000, "0")]
)
def test_the_estimate(loops: int, tokens: int, saved: str) -> None:
    """Saved is what lies between the tokens that were written and the caps, or nothing."""
    assert saved_usd(Terms(1000, Decimal("0.001")), loops, tokens) == Decimal(saved)


def test_the_figures_of_the_last_day(tmp_path: Path) -> None:
    """The last day is told by model and by hour, and is the sum of what happened."""
    with operated(tmp_path, [loop(), Reply("Good."), Reply("Good.")]) as ours:
        for _ in range(2):
            assert ours.ask("m/x")[0] == 200
        run, _, _ = ours.request("GET", "/../runs/x")  # what is on its way is written by then
        assert run == 200
        status, told, _ = ours.request("GET", "/figures")
    assert status == 200
    (model,) = told["models"]
    assert {name: model[name] for name in ("model", "exchanges", "looped_exchanges", "chars")} == {
        "model": "m/x",
        "exchanges": 2,
        "looped_exchanges": 1,
        "chars": 3840,
    }
    assert len(told["hours"]) == 25
    assert sum(hour["chars"] for hour in told["hours"]) == 3840
    assert told["hours"][-1]["chars"] + told["hours"][-2]["chars"] == 3840
    assert told["ledger"]["owed"] == 1


def test_the_workers_of_a_command_are_one(tmp_path: Path) -> None:
    """With several workers the page shows what all of them run and have cut."""
    near = [head(), *list(loop(chars=3000, delta_chars=500).events())[:6], stall]
    with operated(tmp_path, [Reply("Good.")], server="workers = 2") as ours:
        ours.fake.scripts |= {"cut": [loop(), Reply("Good.")], "near": [near]}
        asked = [ours.begin(f"m/{number}", script="near") for number in range(8)]
        assert ours.ask("m/x", script="cut")[0] == 200
        seen = ours.seen(lambda told: told["suspected"] == told["in_flight"] == 8)
        assert {row["model"] for row in seen["exchanges"]} == {f"m/{n}" for n in range(8)}
        assert seen["newest_loop"]
        _, (reply,), _ = ours.request("GET", "/replies")
        assert (reply["model"], reply["chars"]) == ("m/x", 3840)
        assert reply["sentence"].startswith("nothing new said")
        for each in asked:
            each.cancel()
