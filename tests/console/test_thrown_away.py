"""What the ledger and the processes say of the same replies."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loopguard.billing.market import Terms
from loopguard.console.thrown_away import merged, saved_usd
from loopguard.proxy.sight import DiscardedReply
from tests.console.operated import operated
from tests.fake_openrouter import Reply, head, loop, stall


def entry(exchange: str, at_s: int, **named: Any) -> dict[str, Any]:
    values = {
        "exchange": exchange,
        "attempt": 1,
        "at_s": at_s,
        "model": "m/x",
        "profile": "default",
        "rule": "stretch",
        "words": 960,
        "chars": 3840,
        "state": "priced",
        "unpriced_reason": None,
        "cost_usd": Decimal("0.25"),
    }
    return values | named


def remembered(exchange: str, at_s: float, **named: Any) -> DiscardedReply:
    values = {
        "model": "m/x",
        "profile": "default",
        "rule": "stretch",
        "channel": "content",
        "words": 960,
        "chars": 3840,
        "sentence": "nothing new said",
        "sample": "void 0; ",
    }
    return DiscardedReply(exchange=exchange, attempt=1, at_s=at_s, **values | named)


def test_both_accounts_become_one() -> None:
    """A reply is told once: its price by the ledger, its sentence by the process that cut it."""
    told = merged(
        [remembered("a", 10.5), remembered("b", 30.5, model="")],
        [entry("a", 10), entry("c", 20, state="unpriced", cost_usd=None, unpriced_reason="no_id")],
    )
    assert [(reply["exchange"], reply["state"], reply["cost_usd"]) for reply in told] == [
        ("b", "owed", None),
        ("c", "unpriced", None),
        ("a", "priced", 0.25),
    ]
    assert [reply["sentence"] for reply in told] == ["nothing new said", None, "nothing new said"]
    assert [reply["sample"] for reply in told] == ["void 0; ", None, "void 0; "]
    assert told[0]["model"] == ""


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
        assert seen["newest"]
        _, (reply,), _ = ours.request("GET", "/replies")
        assert (reply["model"], reply["chars"]) == ("m/x", 3840)
        assert reply["sentence"].startswith("nothing new said")
        for each in asked:
            each.cancel()
