"""The ledger command shows what is in the ledger, to people and to programs."""

import asyncio
import csv
import io
import json
import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from prometheus_client import CollectorRegistry

from loopguard import ledger_command
from loopguard.billing.database import Database
from loopguard.billing.entries import Price
from loopguard.billing.keys import fingerprint
from loopguard.billing.ledger import Ledger
from loopguard.cli import main
from loopguard.metrics import Metrics
from tests.fake_openrouter import FakeOpenRouter, in_thread
from tests.fake_openrouter.generations import record
from tests.ledger_values import abandoned, exchange_row

OPERATOR = "sk-operator"
AT_S = 1_790_000_000  # 2026-09-21


async def fill(url):
    """A priced loop, an owed stall of the day after, an unpriced loop; two exchanges."""
    now_s = AT_S
    ledger = Ledger(
        Database(url),
        Metrics(CollectorRegistry()),
        first_look_s=0.0,
        lease_s=30.0,
        clock=lambda: now_s,
    )
    ledger.start()
    key = {"fingerprint": fingerprint(OPERATOR)}
    await ledger.record(abandoned("a", model="x/dear", run="=run\x1b[1m", **key))
    claim = await ledger.claim([fingerprint(OPERATOR)])
    await ledger.settle(claim, Price(Decimal("0.00003452"), 64, 98, cancelled=True))
    await ledger.record(abandoned("b", model="a/cheap", generation=None))
    ledger.record_exchange(exchange_row("a", model="x/dear"))
    ledger.record_exchange(exchange_row("b", model="a/cheap", outcome="looped", cost_usd=None))
    await ledger.flush(5)
    now_s += 86_400
    await ledger.record(abandoned("c", model="a/cheap", reason="stalled", rule=None, **key))
    await ledger.close()


@pytest.fixture
def ask(ledger_url, monkeypatch, capsys):
    """Run ``loopguard ledger`` on a filled ledger; returns what it printed."""
    asyncio.run(fill(ledger_url))
    monkeypatch.setenv("LOOPGUARD_LEDGER__URL", ledger_url)

    def command(*words):
        assert main(["ledger", *words]) == 0
        return capsys.readouterr().out

    return command


def test_summary_table(ask):
    """The summary names the dearest first, in columns that a person can read."""
    heading, *lines = ask("summary").splitlines()
    assert heading.startswith("model    turns  errors  loops  loop words  loop chars    loop USD ")
    assert [line.split() for line in lines] == [
        [
            "x/dear",
            "1",
            "0",
            "1",
            "3065",
            "12261",
            "0.00003452",
            "1",
            "0",
            "0",
            "0.00003452",
            "0.008262",
            "0.00829652",
        ],
        ["a/cheap", "1", "1", "1", "3065", "12261", "0", "2", "1", "1", "0", "0", "0"],
    ]
    assert {len(line) for line in lines} == {len(heading)}


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("model", ["x/dear", "a/cheap"]),
        ("profile", ["default"]),
        ("run", ["=run\x1b[1m", "run-1"]),
        ("day", ["2026-09-21", "2026-09-22"]),
    ],
)
def test_summary_json(ask, by, groups):
    """The summary has a line for each model, profile, run or day, as JSON too."""
    lines = json.loads(ask("summary", "--by", by, "--json"))
    assert [line[by] for line in lines] == groups
    assert sum(line["abandoned"] for line in lines) == 3
    assert sum(line["total_cost_usd"] for line in lines) == pytest.approx(0.00829652)


def test_summary_since(ask):
    """A summary since a day leaves out what is older."""
    (line,) = json.loads(ask("summary", "--since", "2026-09-22", "--json"))
    assert (line["model"], line["abandoned"], line["turns"]) == ("a/cheap", 1, 0)


def test_list(ask):
    """The list shows the entries of a state, and no control characters."""
    heading, line = ask("list", "--state", "priced").splitlines()
    assert heading.split()[:3] == ["at", "model", "run"]
    assert line.startswith("2026-09-21T14:13:20Z  x/dear  =run\\x1b[1m  looped   3065  gen-a-1")
    assert line.endswith("priced           0.00003452")


@pytest.mark.parametrize(("state", "exchanges"), [("owed", ["c"]), ("unpriced", ["b"])])
def test_list_json(ask, state, exchanges):
    """The list is had as JSON, with every column."""
    lines = json.loads(ask("list", "--state", state, "--json"))
    assert [line["exchange"] for line in lines] == exchanges
    assert lines[0]["unpriced_reason"] == (None if state == "owed" else "no_id")


def test_list_limit(ask):
    """The list is as long as it is asked to be."""
    assert len(json.loads(ask("list", "--limit", "2", "--json"))) == 2


def test_export_csv(ask):
    """The export is CSV with a heading, every row and every decimal."""
    rows = list(csv.DictReader(io.StringIO(ask("export"))))
    assert [row["exchange"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["cost_usd"] == "0.00003452"
    assert (rows[0]["cancelled"], rows[1]["cancelled"]) == ("true", "")
    assert rows[0]["at"] == "2026-09-21T14:13:20Z"


def test_export_jsonl(ask):
    """The export is also had as one JSON object a line."""
    rows = [json.loads(line) for line in ask("export", "--format", "jsonl").splitlines()]
    assert [row["cost_usd"] for row in rows] == [0.00003452, None, None]
    (owed,) = ask("export", "--format", "jsonl", "--state", "owed").splitlines()
    assert json.loads(owed)["exchange"] == "c"


def test_export_exchanges(ask):
    """The rows of the exchanges are exported in the same way."""
    rows = list(csv.DictReader(io.StringIO(ask("export", "--rows", "exchanges"))))
    assert [(row["exchange"], row["outcome"]) for row in rows] == [
        ("a", "completed"),
        ("b", "looped"),
    ]


def test_settle(ask, monkeypatch):
    """Settling asks for what is owed with the operator's key, and says how the ledger stands."""
    fake = FakeOpenRouter()
    fake.generations["gen-c-1"] = record("gen-c-1", streamed=True, cancelled=True)
    fake._keys["gen-c-1"] = OPERATOR
    with in_thread(fake):
        monkeypatch.setenv("LOOPGUARD_UPSTREAM__BASE_URL", fake.base_url)
        monkeypatch.setenv("LOOPGUARD_UPSTREAM__API_KEY", OPERATOR)
        monkeypatch.setenv("LOOPGUARD_LEDGER__RETENTION_DAYS", "0")
        assert ask("settle", "--within-s", "30") == "owed 0 priced 2 unpriced 1\n"
        assert [request.key for request in fake.lookups] == [OPERATOR]


def test_no_ledger(tmp_path, monkeypatch, capsys):
    """A ledger that is not there is not made by reading it."""
    monkeypatch.setenv("LOOPGUARD_LEDGER__URL", f"sqlite:///{tmp_path}/ledger.db")
    assert main(["ledger", "summary"]) == 2
    assert "there is no ledger at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_ledger_away(monkeypatch, capsys):
    """A database that is away is one sentence, without the password of its URL."""
    monkeypatch.setenv("LOOPGUARD_LEDGER__URL", "postgresql://user:secret@127.0.0.1:1/ledger")
    assert main(["ledger", "list"]) == 1
    told = capsys.readouterr().err
    assert "the ledger cannot be used (" in told
    assert "secret" not in told


def test_since():
    """A time is a day, a moment, or a number of days ago; without a zone it is UTC."""
    assert ledger_command.since("2026-10-02") == datetime(2026, 10, 2, tzinfo=UTC).timestamp()
    assert ledger_command.since("2026-10-02T02:00+02:00") == ledger_command.since("2026-10-02")
    assert ledger_command.since("30d") == pytest.approx(time.time() - 30 * 86_400, abs=5)
    with pytest.raises(ValueError, match="yesterday"):
        ledger_command.since("yesterday")


def test_wrong_time(capsys):
    """A time that cannot be read is refused as any wrong word of a command is."""
    with pytest.raises(SystemExit) as refused:
        main(["ledger", "summary", "--since", "yesterday"])
    assert refused.value.code == 2
    assert "--since" in capsys.readouterr().err
