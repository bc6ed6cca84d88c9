"""Whatever replicas die at, no entry is lost and none is priced twice."""

import asyncio
import multiprocessing
import signal
from collections import Counter
from collections.abc import Sequence
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from loopguard.billing.database import Database
from loopguard.billing.figures import read_entries, read_exchanges
from tests.property.ledger_life import LEASE_S, Life, Step, Told

START_S = 1_700_000_000.0
_spawning = multiprocessing.get_context("forkserver")
_spawning.set_forkserver_preload(["tests.property.ledger_life"])


steps = st.sampled_from(["record", "record", "look", "look", "exchange", 3.0, 20.0])
scripts = st.lists(steps, min_size=1, max_size=8)
deaths = st.none() | st.integers(1, 150)


class Replicas:
    """Lives on one ledger, and what is known of it by now."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now_s = START_S
        self.lives = 0
        self.told: list[Told] = []
        self.settled: dict[str, tuple[object, object]] = {}

    def live(self, *plans: tuple[Sequence[Step], int | None]) -> None:
        """Let replicas live at the same time, until all are dead."""
        running = []
        for script, dies_at in plans:
            self.lives += 1
            life = Life(self.url, script, f"{self.lives}-{self.now_s:.0f}", self.now_s, dies_at)
            ours, theirs = _spawning.Pipe(duplex=False)
            child = _spawning.Process(target=life.live, args=(theirs,))
            child.start()
            theirs.close()
            running.append((child, ours))
        for child, ours in running:
            try:
                while True:
                    self.told.append(ours.recv())
            except EOFError:
                child.join()
            ours.close()
        self.told.sort(key=lambda told: told.at)
        self.now_s = max([self.now_s, *(told.now_s for told in self.told)])
        assert {child.exitcode for child, _ in running} == {-signal.SIGKILL}

    @property
    def survived(self) -> bool:
        """Whether the first life came to the end of its script."""
        return any(told.what == "survived" and told.entry == "1" for told in self.told)

    def check(self) -> None:
        """Compare the ledger with what the lives have said."""
        entries, exchanges = asyncio.run(self._read())
        durable = {told.entry for told in self.told if told.what == "durable"}
        assert durable <= entries.keys() | exchanges, "something durable is lost"
        for name, final in self.settled.items():
            assert entries[name] == final, "a final state has changed"
        priced = Counter(told.entry for told in self.told if told.what == "priced")
        assert set(priced.values()) <= {1}, "an entry was priced twice"
        for name in priced:
            assert entries[name][0] == "priced", "a price is lost"
        self.settled = {name: entry for name, entry in entries.items() if entry[0] != "owed"}
        self._check_look_ups()

    def _check_look_ups(self) -> None:
        """No entry is looked up twice at once: not by two lives, nor within a dead one's lease."""
        open_since: dict[str, float] = {}
        for told in self.told:
            if told.what == "asked":
                assert told.now_s >= open_since.get(told.entry, 0.0) + LEASE_S
                open_since[told.entry] = told.now_s
            elif told.what == "answered":
                del open_since[told.entry]

    async def _read(self) -> tuple[dict[str, tuple[object, object]], set[str]]:
        database = Database(self.url)
        entries = {
            entry["exchange"]: (entry["state"], entry["cost_usd"])
            async for entry in read_entries(database)
        }
        exchanges = {row["exchange"] async for row in read_exchanges(database)}
        await database.close()
        return entries, exchanges

    def settle_everything(self) -> None:
        """A last life finds a price, or none for good, for whatever is owed."""
        self.now_s += LEASE_S
        self.live(([step for _ in range(8) for step in ("look", 16.0)], None))
        self.check()
        entries, _ = asyncio.run(self._read())
        assert {state for state, _ in entries.values()} <= {"priced", "unpriced"}


SCRIPT: Sequence[Step] = ("record", "exchange", 3.0, "look", "record", 20.0, "look")


def test_dies_at_every_await(new_ledger):
    """Whichever await a replica dies at, the next one finds and settles all that was durable."""
    for dies_at in count(1):
        replicas = Replicas(new_ledger())
        replicas.live((SCRIPT, dies_at))
        replicas.check()
        replicas.settle_everything()
        if replicas.survived:
            break
    assert dies_at > 50  # so many awaits there are at the least


class Crashes(RuleBasedStateMachine):
    """Replicas that live one after another or at the same time, each to an await of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = Replicas(self.new_ledger())

    @rule(script=scripts, dies_at=deaths)
    def one_lives(self, script: Sequence[Step], dies_at: int | None) -> None:
        self.replicas.live((script, dies_at))

    @rule(scripts=st.tuples(scripts, scripts), deaths=st.tuples(deaths, deaths))
    def two_live(self, scripts: tuple[Sequence[Step], ...], deaths: tuple[int | None, ...]) -> None:
        self.replicas.live(*zip(scripts, deaths, strict=True))

    @rule(seconds=st.sampled_from([1.0, 10.0, LEASE_S, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.replicas.now_s += seconds

    @invariant()
    def nothing_is_lost_or_priced_twice(self) -> None:
        self.replicas.check()

    def teardown(self) -> None:
        self.replicas.settle_everything()


def test_crashes(new_ledger):
    """Whatever replicas do, and wherever they die, nothing is lost and nothing priced twice."""
    Crashes.new_ledger = staticmethod(new_ledger)
    run_state_machine_as_test(Crashes, settings=settings(max_examples=10, stateful_step_count=6))
