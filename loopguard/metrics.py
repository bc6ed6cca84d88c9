"""What happened, counted: one method for each thing that happens.

Every label is from a closed set but ``model``, which callers choose: the first ``MAX_MODELS``
names have series of their own, the rest share ``other``. Nothing is labelled by caller, key or
generation.

Where several workers serve, each keeps its `Metrics` in files of a shared folder, under its number:
so they can be read as one, and what a worker counted outlives it. The figures of the command itself
are kept by whoever started them. Blind spot: each worker chooses its own ``MAX_MODELS`` names.
"""

from collections.abc import Iterable
from decimal import Decimal
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
    multiprocess,
    values,
)

# They are as many series again, and the metrics of several workers have none.
disable_created_metrics()  # type: ignore[no-untyped-call]

MAX_MODELS = 100
"""A deployment uses a few dozen models; a caller that makes names up must not cost memory."""

MAX_MODEL_CHARS = 100
"""The longest names on the market have some 60; a longer one is counted as ``other``."""

OTHER_MODELS = "other"

_EXCHANGE_BUCKETS_S = (0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
"""From a cached answer of a few words to the shipped ``exchange_timeout_s`` and its retries."""

_FIRST_DELTA_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""From a small model to one that thinks for minutes and shows nothing of it."""

_OWN_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
"""Milliseconds are usual; what stands above 0.1 s is a fault of loopguard's own."""

_STALL_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
"""Around the few milliseconds that are usual, and up to what every caller would notice."""

_LOOK_UP_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""From an answer of a near upstream to the time-out of a look-up."""

_ATTEMPTS_BUCKETS = (1, 2, 3, 4, 6, 8, 12)
"""Each number up to the shipped ``max_attempts``, then budgets that an operator raised."""

_REPLIED = frozenset({"completed", "looped"})
"""How an attempt ends whose model has written something for certain."""


FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Read by prometheus_client when it is imported: names the folder of the files."""


def keep_in_files(worker: int) -> None:
    """Keep what this process counts in the files of a worker, which a successor goes on with.

    To be called before there are any metrics, with ``FOLDER_VARIABLE`` set since the launch.
    """
    values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]


def read_files(registry: CollectorRegistry, folder: str) -> None:
    """Show in a registry what all workers keep in their files, summed."""
    multiprocess.MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]


def forget_gauges(worker: int, folder: str) -> None:
    """Drop the present state of a worker that has ended; what it counted stays."""
    multiprocess.mark_process_dead(worker, folder)  # type: ignore[no-untyped-call]


def exposition(registry: CollectorRegistry) -> bytes:
    """All series of a registry in Prometheus' text format, version 0.0.4."""
    return generate_latest(registry)


class CommandMetrics:
    """The series of a whole command, however many workers it has."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._workers = Gauge(
            "loopguard_workers", "Workers that serve callers now.", registry=registry
        )
        self._deaths = Counter(
            "loopguard_worker_deaths", "Workers that ended unasked.", registry=registry
        )
        self._readings = Counter(
            "loopguard_config_reloads",
            "Times that the configuration was read again, by what came of it.",
            ("outcome",),
            registry=registry,
        )
        for outcome in ("used", "refused"):
            self._readings.labels(outcome)
        self._read_at_s = Gauge(
            "loopguard_config_read_timestamp_seconds",
            "When the configuration in use was read, in seconds since 1970.",
            registry=registry,
        )
        self._read_at_s.set_to_current_time()
        self._connections = Gauge(
            "loopguard_admin_connections",
            "Connections to the operators' listener that are open.",
            registry=registry,
        )
        self._refusals = Counter(
            "loopguard_admin_refusals",
            "Peers of the operators' listener that were refused, by the name of the error.",
            ("reason",),
            registry=registry,
        )
        Info("loopguard_build", "What is running.", registry=registry).info(
            {"version": version("loopguard")}
        )

    def workers_serve(self, workers: int) -> None:
        """So many workers serve callers now."""
        self._workers.set(workers)

    def worker_died(self) -> None:
        """A worker ended unasked."""
        self._deaths.inc()

    def connection_opened(self) -> None:
        """An operator, or what scrapes, has opened a connection."""
        self._connections.inc()

    def connection_closed(self) -> None:
        """A connection that an operator had opened is closed."""
        self._connections.dec()

    def request_refused(self, reason: str) -> None:
        """A peer of the operators' listener was refused, with the error of this name."""
        self._refusals.labels(reason).inc()

    def configuration_read(self) -> None:
        """The configuration was read again and is in use."""
        self._readings.labels("used").inc()
        self._read_at_s.set_to_current_time()

    def configuration_refused(self) -> None:
        """The configuration was read again and refused."""
        self._readings.labels("refused").inc()


class Metrics:
    """The series of one worker, kept in the registry that is passed in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._models: set[str] = set()
        self._begun: set[tuple[str, str]] = set()
        self._longest_stall_s = 0.0

        ended = ("dialect", "profile", "outcome")
        served = ("dialect", "profile")
        looped = ("profile", "model")
        self._exchanges = Counter(
            "loopguard_exchanges", "Exchanges that ended.", ended, registry=registry
        )
        self._attempts = Counter(
            "loopguard_attempts", "Upstream requests that ended.", ended, registry=registry
        )
        self._model_attempts = Counter(
            "loopguard_model_attempts",
            "Upstream requests that ended, by the model that the caller asked for.",
            ("profile", "model", "outcome"),
            registry=registry,
        )
        self._refusals = Counter(
            "loopguard_refusals",
            "Requests that became no exchange and were answered with an error, by its name.",
            ("reason",),
            registry=registry,
        )
        self._loop_aborts = Counter(
            "loopguard_loop_aborts",
            "Replies discarded because they looped.",
            ("profile", "model", "rule", "channel"),
            registry=registry,
        )
        self._loop_abort_words = Counter(
            "loopguard_loop_abort_words", "Words thrown away with them.", looped, registry=registry
        )
        self._loop_abort_chars = Counter(
            "loopguard_loop_abort_chars",
            "Characters thrown away with them.",
            looped,
            registry=registry,
        )
        self._loop_exhausted = Counter(
            "loopguard_loop_exhausted",
            "Exchanges that failed because the model looped.",
            looped,
            registry=registry,
        )
        self._loop_memory_refusals = Counter(
            "loopguard_loop_memory_refusals",
            "Requests refused because the same one had just looped every time.",
            registry=registry,
        )
        self._exchange_s = Histogram(
            "loopguard_exchange_duration_seconds",
            "From a caller's request to the end of its answer.",
            served,
            buckets=_EXCHANGE_BUCKETS_S,
            registry=registry,
        )
        self._first_delta_s = Histogram(
            "loopguard_first_delta_seconds",
            "From an upstream request to the first delta that carries something.",
            served,
            buckets=_FIRST_DELTA_BUCKETS_S,
            registry=registry,
        )
        self._exchange_attempts = Histogram(
            "loopguard_exchange_attempts",
            "Upstream requests that one exchange cost.",
            served,
            buckets=_ATTEMPTS_BUCKETS,
            registry=registry,
        )
        self._own_s = Histogram(
            "loopguard_own_seconds",
            "What loopguard itself added to one exchange.",
            served,
            buckets=_OWN_BUCKETS_S,
            registry=registry,
        )
        self._connections = Gauge(
            "loopguard_connections",
            "Connections of callers that are open.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._in_flight = Gauge(
            "loopguard_exchanges_in_flight",
            "Exchanges that have not ended.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._open_upstreams = Gauge(
            "loopguard_open_upstreams",
            "Upstream responses that are open.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._held_bytes = Gauge(
            "loopguard_held_bytes",
            "Reply bytes held back from callers.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._stall_s = Gauge(
            "loopguard_event_loop_longest_stall_seconds",
            "The longest time that the event loop did not turn, since the start.",
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._stalls_s = Histogram(
            "loopguard_event_loop_stall_seconds",
            "How late the event loop turned, measured 20 times a second.",
            buckets=_STALL_BUCKETS_S,
            registry=registry,
        )
        self._kept_usd = Counter(
            "loopguard_kept_cost_usd",
            "What replies cost that were kept, by their own usage.",
            looped,
            registry=registry,
        )
        self._kept_tokens = Counter(
            "loopguard_kept_tokens", "Completion tokens of the same.", looped, registry=registry
        )
        self._abandoned_usd = Counter(
            "loopguard_abandoned_cost_usd",
            "What generations cost that were abandoned, as far as they are priced.",
            ("profile", "model", "reason"),
            registry=registry,
        )
        self._abandoned_tokens = Counter(
            "loopguard_abandoned_tokens",
            "Completion tokens of the same.",
            ("profile", "model", "reason"),
            registry=registry,
        )
        self._saved_usd = Counter(
            "loopguard_saved_cost_usd",
            "What looping replies would have cost from the cut to their model's cap: an estimate.",
            looped,
            registry=registry,
        )
        self._unpriced = Counter(
            "loopguard_unpriced",
            "Abandoned generations that will never have a price, by why.",
            ("profile", "model", "reason"),
            registry=registry,
        )
        self._ledger_entries = Gauge(
            "loopguard_ledger_entries",
            "Entries of the ledger.",
            ("state",),
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self._oldest_owed_s = Gauge(
            "loopguard_ledger_oldest_owed_seconds",
            "Age of the oldest entry that has no price yet; 0 without any.",
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self._ledger_backlog = Gauge(
            "loopguard_ledger_backlog_rows",
            "Rows in memory that the database has not taken yet.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._ledger_lost = Counter(
            "loopguard_ledger_lost",
            "Rows lost because the database was away for too long.",
            ("kind",),
            registry=registry,
        )
        for kind in ("entry", "exchange"):
            self._ledger_lost.labels(kind)
        self._look_up_s = Histogram(
            "loopguard_look_up_duration_seconds",
            "Of asking the upstream for the record of a generation.",
            ("outcome",),
            buckets=_LOOK_UP_BUCKETS_S,
            registry=registry,
        )

    def connection_opened(self) -> None:
        """A caller has opened a connection."""
        self._connections.inc()

    def connection_closed(self) -> None:
        """A connection that a caller had opened is closed."""
        self._connections.dec()

    def exchange_began(self) -> None:
        """A caller's request was taken on."""
        self._in_flight.inc()

    def exchange_ended(  # noqa: PLR0917  the figures of one ending
        self,
        dialect: str,
        profile: str,
        outcome: str,
        duration_s: float,
        attempts: int,
        own_time_s: float,
    ) -> None:
        """An exchange that had begun ended, whether or not the caller was still there.

        Args:
            dialect: the wire that the caller spoke.
            profile: how it was served.
            outcome: how it ended.
            duration_s: seconds from the request to the end of the answer.
            attempts: upstream requests that it cost.
            own_time_s: seconds of those that were loopguard's own.
        """
        self._in_flight.dec()
        self._exchanges.labels(dialect, profile, outcome).inc()
        self._exchange_s.labels(dialect, profile).observe(duration_s)
        self._exchange_attempts.labels(dialect, profile).observe(attempts)
        self._own_s.labels(dialect, profile).observe(own_time_s)

    def attempt_ended(self, dialect: str, profile: str, model: str | None, outcome: str) -> None:
        """An upstream request ended.

        A model that has never replied gets no series of its own: anyone can make names up, and
        the upstream refuses them.
        """
        self._attempts.labels(dialect, profile, outcome).inc()
        replied = outcome in _REPLIED
        counted = self._counted(model) if replied or model in self._models else OTHER_MODELS
        self._model_attempts.labels(profile, counted, outcome).inc()
        if replied:
            self._begin_loop_series(profile, counted)

    def request_refused(self, reason: str) -> None:
        """A request that became no exchange was answered with the error of this name."""
        self._refusals.labels(reason).inc()

    def first_delta(self, dialect: str, profile: str, wait_s: float) -> None:
        """The first delta of an attempt came, so many seconds after its request."""
        self._first_delta_s.labels(dialect, profile).observe(wait_s)

    def tripped(  # noqa: PLR0917  the figures of one trip
        self, profile: str, model: str | None, rule: str, channel: str, words: int, chars: int
    ) -> None:
        """A looping reply was discarded, with so many words and characters."""
        model = self._counted(model)
        self._loop_aborts.labels(profile, model, rule, channel).inc()
        self._loop_abort_words.labels(profile, model).inc(words)
        self._loop_abort_chars.labels(profile, model).inc(chars)

    def loops_exhausted(self, profile: str, model: str | None) -> None:
        """An exchange failed because the model looped."""
        self._loop_exhausted.labels(profile, self._counted(model)).inc()

    def loop_memory_refused(self) -> None:
        """A request was refused because the same one had just looped every time."""
        self._loop_memory_refusals.inc()

    def upstream_opened(self) -> None:
        """An upstream response was opened."""
        self._open_upstreams.inc()

    def upstream_closed(self) -> None:
        """An upstream response that was open was closed."""
        self._open_upstreams.dec()

    def bytes_held(self, held_bytes: int) -> None:
        """So many reply bytes are held back now."""
        self._held_bytes.set(held_bytes)

    def stalled_loop(self, stall_s: float) -> None:
        """The event loop turned so many seconds late; the longest such time is kept as well."""
        self._stalls_s.observe(stall_s)
        if stall_s > self._longest_stall_s:
            self._longest_stall_s = stall_s
            self._stall_s.set(stall_s)

    def reply_kept(
        self, profile: str, model: str, cost_usd: Decimal | None, tokens: int | None
    ) -> None:
        """A reply was kept whose usage says what it cost, how many tokens it has, or both."""
        labels = (profile, self._counted(model))
        self._kept_usd.labels(*labels).inc(float(cost_usd or 0))
        self._kept_tokens.labels(*labels).inc(tokens or 0)

    def generation_priced(
        self, profile: str, model: str, reason: str, cost_usd: Decimal, tokens: int
    ) -> None:
        """The price of an abandoned generation became known.

        Args:
            profile: of its exchange.
            model: that wrote it.
            reason: why it was abandoned.
            cost_usd: what it cost.
            tokens: that it wrote.
        """
        labels = (profile, self._counted(model), reason)
        self._abandoned_usd.labels(*labels).inc(float(cost_usd))
        self._abandoned_tokens.labels(*labels).inc(tokens)

    def loop_cut_short(self, profile: str, model: str, saved_usd: Decimal) -> None:
        """A looping reply was priced that would have cost so much more at its model's cap."""
        self._saved_usd.labels(profile, self._counted(model)).inc(float(saved_usd))

    def generation_unpriced(self, profile: str, model: str, reason: str) -> None:
        """An abandoned generation will never have a price, for this reason."""
        self._unpriced.labels(profile, self._counted(model), reason).inc()

    def looked_up(self, outcome: str, duration_s: float) -> None:
        """The upstream was asked for the record of a generation."""
        self._look_up_s.labels(outcome).observe(duration_s)

    def ledger_stands(self, entries: Iterable[tuple[str, int]], oldest_owed_s: float) -> None:
        """The ledger was counted: entries by state, and the age of the oldest that is owed."""
        for state, count in entries:
            self._ledger_entries.labels(state).set(count)
        self._oldest_owed_s.set(oldest_owed_s)

    def ledger_backlog(self, rows: int) -> None:
        """So many rows are in memory that the database has not taken yet."""
        self._ledger_backlog.set(rows)

    def ledger_lost(self, kind: str) -> None:
        """A row, of an entry or an exchange, was lost because the memory for rows is full."""
        self._ledger_lost.labels(kind).inc()

    def _begin_loop_series(self, profile: str, model: str) -> None:
        """Show zeros before the first loop: a rate misses the first value of a new series."""
        looped = (profile, model)
        if looped in self._begun:
            return
        self._begun.add(looped)
        self._model_attempts.labels(*looped, "looped")
        for counter in (
            self._loop_abort_words,
            self._loop_abort_chars,
            self._loop_exhausted,
            self._saved_usd,
        ):
            counter.labels(*looped)
        for counter in (self._abandoned_usd, self._abandoned_tokens):
            counter.labels(*looped, "looped")

    def _counted(self, model: str | None) -> str:
        """The name that a model is counted under; None is a request that names none."""
        if model is None:
            return OTHER_MODELS
        if model in self._models:
            return model
        # Half a surrogate pair cannot be written: with it as a label nothing would be shown again.
        unfit = len(model) > MAX_MODEL_CHARS or not model.isprintable()
        if unfit or len(self._models) >= MAX_MODELS:
            return OTHER_MODELS
        self._models.add(model)
        return model
