"""The metrics: names, labels and figures as they are scraped."""

from decimal import Decimal
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from loopguard.metrics import MAX_MODEL_CHARS, MAX_MODELS, CommandMetrics, Metrics, exposition


class Scraped:
    """Metrics in a registry of their own, read through the text that is scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def series(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(exposition(self.registry).decode())
            for sample in family.samples
            if sample.name == name
        }

    def value(self, name: str, **labels: str) -> float:
        return self.series(name)[tuple(sorted(labels.items()))]


@pytest.fixture
def scraped():
    return Scraped()


def test_exchange(scraped):
    """An exchange is counted by its ending, and its figures are observed."""
    scraped.metrics.exchange_began()
    scraped.metrics.exchange_began()
    assert scraped.value("loopguard_exchanges_in_flight") == 2

    scraped.metrics.exchange_ended(
        "chat", "default", "completed", duration_s=12, attempts=3, own_time_s=0.004
    )

    served = {"dialect": "chat", "profile": "default"}
    assert scraped.value("loopguard_exchanges_in_flight") == 1
    assert scraped.value("loopguard_exchanges_total", **served, outcome="completed") == 1
    for name, figure, below, above in (
        ("loopguard_exchange_duration_seconds", 12, "10.0", "20.0"),
        ("loopguard_exchange_attempts", 3, "2.0", "3.0"),
        ("loopguard_own_seconds", 0.004, "0.0025", "0.005"),
    ):
        assert scraped.value(f"{name}_sum", **served) == figure
        assert scraped.value(f"{name}_bucket", **served, le=below) == 0
        assert scraped.value(f"{name}_bucket", **served, le=above) == 1


def test_attempt(scraped):
    """An attempt is counted by its ending, and its first delta is timed."""
    scraped.metrics.first_delta("chat", "default", 0.7)
    scraped.metrics.attempt_ended("chat", "default", "a/b", "looped")
    scraped.metrics.attempt_ended("chat", "default", "a/b", "completed")

    for name, labels in (
        ("loopguard_attempts_total", {"dialect": "chat", "profile": "default"}),
        ("loopguard_model_attempts_total", {"model": "a/b", "profile": "default"}),
    ):
        assert scraped.value(name, **labels, outcome="looped") == 1
        assert scraped.value(name, **labels, outcome="completed") == 1
    assert (
        scraped.value("loopguard_first_delta_seconds_sum", dialect="chat", profile="default") == 0.7
    )


def test_zeros_before_the_first_loop(scraped):
    """A model that has replied shows zeros for what loops add to, so that a rate sees the first."""
    scraped.metrics.attempt_ended("chat", "p", "a/b", "completed")

    looped = {"profile": "p", "model": "a/b"}
    assert scraped.value("loopguard_model_attempts_total", **looped, outcome="looped") == 0
    for name in ("loop_abort_words", "loop_abort_chars", "loop_exhausted", "saved_cost_usd"):
        assert scraped.value(f"loopguard_{name}_total", **looped) == 0
    for name in ("abandoned_cost_usd", "abandoned_tokens"):
        assert scraped.value(f"loopguard_{name}_total", **looped, reason="looped") == 0


def test_made_up_models(scraped):
    """Models that the upstream refuses get no series of their own, and use up no names."""
    attempts = "loopguard_model_attempts_total"
    for number in range(MAX_MODELS):
        scraped.metrics.attempt_ended("chat", "p", f"made/up{number}", "refused")
    scraped.metrics.attempt_ended("chat", "p", "a/b", "completed")
    scraped.metrics.attempt_ended("chat", "p", "a/b", "refused")

    other = {"profile": "p", "model": "other", "outcome": "refused"}
    assert scraped.value(attempts, **other) == MAX_MODELS
    assert scraped.value(attempts, profile="p", model="a/b", outcome="refused") == 1


def test_refusals(scraped):
    """A request that became no exchange is counted by the name of its error."""
    scraped.metrics.request_refused("authentication")
    scraped.metrics.request_refused("authentication")

    assert scraped.value("loopguard_refusals_total", reason="authentication") == 2


def test_loops(scraped):
    """A discarded reply is counted once, with its words and characters."""
    scraped.metrics.tripped("default", "a/b", "frequency", "content", 3065, 12261)
    scraped.metrics.tripped("default", "a/b", "length", "content", 40000, 250001)
    scraped.metrics.loops_exhausted("default", "a/b")
    scraped.metrics.loop_memory_refused()

    looped = {"profile": "default", "model": "a/b"}
    aborts = "loopguard_loop_aborts_total"
    assert scraped.value(aborts, **looped, rule="frequency", channel="content") == 1
    assert scraped.value(aborts, **looped, rule="length", channel="content") == 1
    assert scraped.value("loopguard_loop_abort_words_total", **looped) == 43065
    assert scraped.value("loopguard_loop_abort_chars_total", **looped) == 262262
    assert scraped.value("loopguard_loop_exhausted_total", **looped) == 1
    assert scraped.value("loopguard_loop_memory_refusals_total") == 1


def test_gauges(scraped):
    """What is open and what is held goes up and down again."""
    scraped.metrics.upstream_opened()
    scraped.metrics.upstream_opened()
    scraped.metrics.upstream_closed()
    scraped.metrics.bytes_held(3072)
    scraped.metrics.connection_opened()
    scraped.metrics.connection_opened()
    scraped.metrics.connection_closed()

    assert scraped.value("loopguard_open_upstreams") == 1
    assert scraped.value("loopguard_held_bytes") == 3072
    assert scraped.value("loopguard_connections") == 1


def test_longest_stall(scraped):
    """The stalls of the event loop are observed, and the longest is kept."""
    for stall_s in (0.002, 0.5, 0.1):
        scraped.metrics.stalled_loop(stall_s)

    assert scraped.value("loopguard_event_loop_stall_seconds_bucket", le="0.25") == 2
    assert scraped.value("loopguard_event_loop_stall_seconds_bucket", le="0.5") == 3
    assert scraped.value("loopguard_event_loop_longest_stall_seconds") == 0.5


def test_command(scraped):
    """The version that is running is told, and how many workers serve."""
    CommandMetrics(scraped.registry).workers_serve(2)
    assert scraped.value("loopguard_workers") == 2
    assert scraped.value("loopguard_build_info", version=version("loopguard")) == 1


def test_models_are_bounded(scraped):
    """The first names have series of their own, every further or overlong one is `other`."""
    scraped.metrics.tripped("p", "x" * (MAX_MODEL_CHARS + 1), "frequency", "content", 1, 1)
    for number in range(MAX_MODELS + 50):
        scraped.metrics.tripped("p", f"m{number}", "frequency", "content", 1, 1)
    scraped.metrics.tripped("p", "m0", "frequency", "content", 1, 1)
    scraped.metrics.loops_exhausted("p", "late")

    words = "loopguard_loop_abort_words_total"
    assert len(scraped.series(words)) == MAX_MODELS + 1
    assert scraped.value(words, profile="p", model="m0") == 2
    assert scraped.value(words, profile="p", model=f"m{MAX_MODELS - 1}") == 1
    assert scraped.value(words, profile="p", model="other") == 51
    assert scraped.value("loopguard_loop_exhausted_total", profile="p", model="other") == 1


def test_hostile_model(scraped):
    """A model's name cannot add a line to what is scraped, nor make it impossible to write."""
    exhausted = "loopguard_loop_exhausted_total"
    name = 'a"} 1 forged{x="\\'
    scraped.metrics.loops_exhausted("p", name)
    for unfit in ("a\nforged 1", "a\ud83d", "a\u2028", "a\x1b[31m"):
        scraped.metrics.loops_exhausted("p", unfit)

    assert scraped.value(exhausted, profile="p", model=name) == 1
    assert scraped.value(exhausted, profile="p", model="other") == 4
    assert not scraped.series("forged")


def test_registries_apart():
    """Two sets of metrics in two registries know nothing of each other."""
    one, other = Scraped(), Scraped()
    one.metrics.loop_memory_refused()

    assert other.value("loopguard_loop_memory_refusals_total") == 0


def test_kept(scraped):
    """What kept replies cost and wrote is summed by profile and model, as far as it is told."""
    scraped.metrics.reply_kept("default", "vendor/model", Decimal("0.25"), None)
    scraped.metrics.reply_kept("default", "vendor/model", Decimal("0.5"), 40)
    scraped.metrics.reply_kept("default", "vendor/model", None, 2)
    labels = {"profile": "default", "model": "vendor/model"}
    assert scraped.value("loopguard_kept_cost_usd_total", **labels) == 0.75
    assert scraped.value("loopguard_kept_tokens_total", **labels) == 42


def test_abandoned(scraped):
    """An abandoned generation is counted with its price and what the cut saved, or with why not."""
    scraped.metrics.generation_priced("default", "vendor/model", "looped", Decimal("0.5"), 98)
    scraped.metrics.loop_cut_short("default", "vendor/model", Decimal("0.125"))
    scraped.metrics.generation_unpriced("default", "vendor/model", "not_found")
    labels = {"profile": "default", "model": "vendor/model"}
    assert scraped.value("loopguard_abandoned_cost_usd_total", **labels, reason="looped") == 0.5
    assert scraped.value("loopguard_abandoned_tokens_total", **labels, reason="looped") == 98
    assert scraped.value("loopguard_saved_cost_usd_total", **labels) == 0.125
    assert scraped.value("loopguard_unpriced_total", **labels, reason="not_found") == 1


def test_ledger(scraped):
    """How the ledger stands, and what it could not keep, is told."""
    scraped.metrics.ledger_stands({"owed": 3, "priced": 5}.items(), 60.0)
    scraped.metrics.ledger_backlog(7)
    scraped.metrics.ledger_lost("entry")
    scraped.metrics.looked_up("found", 0.2)
    assert scraped.value("loopguard_ledger_entries", state="owed") == 3
    assert scraped.value("loopguard_ledger_entries", state="priced") == 5
    assert scraped.value("loopguard_ledger_oldest_owed_seconds") == 60
    assert scraped.value("loopguard_ledger_backlog_rows") == 7
    assert scraped.value("loopguard_ledger_lost_total", kind="entry") == 1
    assert scraped.value("loopguard_look_up_duration_seconds_count", outcome="found") == 1


def test_no_series_tells_when_it_was_created(scraped):
    """Series say what happened, and none of them when it was first counted."""
    scraped.metrics.exchange_began()
    shown = exposition(scraped.registry)
    assert b"loopguard_exchanges_in_flight 1.0" in shown
    assert b"_created" not in shown
