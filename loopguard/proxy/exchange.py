"""One caller's request and what it is finally answered.

The exchange makes attempts until `loopguard.core.retry.decide` says what to do with the last one.
Everything that it tells its caller goes through `_deliver`, `_pass_refusal` or `_fail`.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter
from typing import TypeAlias

from aiohttp import web

from loopguard.billing import ledger
from loopguard.core.detection.detector import Detector
from loopguard.core.dialects import Dialect
from loopguard.core.escape import NO_PROVIDER_STATUS, Step
from loopguard.core.events import GenerationId, Seen
from loopguard.core.plan import Plan
from loopguard.core.profile import Profile, Relay
from loopguard.core.request_gate import floor_factor
from loopguard.core.retry import (
    Broken,
    Deliver,
    Departed,
    GiveUp,
    Outcome,
    Refused,
    Retry,
    RetryPolicy,
    Tripped,
    conclude,
    decide,
    identical,
)
from loopguard.errors import InternalFault, LoopguardError, ModelResponseLoop
from loopguard.proxy import headers as crossing
from loopguard.proxy.accounts import Accounts
from loopguard.proxy.attempt import Attempt
from loopguard.proxy.caller import Caller, CallerGone, error_headers, error_response
from loopguard.proxy.clocks import Clocks
from loopguard.proxy.later import Later
from loopguard.proxy.loop_memory import LoopMemory, digest
from loopguard.proxy.record import AttemptRecord, ExchangeRecord, outcome_name
from loopguard.proxy.relay import HeldRelay, LiveRelay
from loopguard.proxy.report import Report
from loopguard.proxy.sight import Sight, State
from loopguard.proxy.upstream import Upstream

# A reply that completes at the last moment has so long to leave. Who does not take it by then is
# gone: a caller that reads nothing would keep an exchange, and what it holds, for ever.
_DELIVERY_S = 60.0


TellLooped: TypeAlias = Callable[[bytes, ModelResponseLoop, int], Awaitable[None]]
"""Tells the other workers which request looped, with which error and how many replies."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all exchanges share.

    Attributes:
        upstream: where attempts are made.
        policy: the budget of an exchange.
        loop_memory: what has looped lately.
        tell_looped: lets every other worker remember it too.
        report: told of every end.
        accounts: told of the same, for the ledger.
        later: does what no caller is to wait for.
        first_delta_timeout_s: seconds that an attempt may take to its first delta.
        keepalive_s: seconds of silence after which a stream gets a comment.
        max_event_bytes: bound of one event of a stream.
        max_held_bytes: bound of what is held of one reply.
        draw: a random number of [0, 1), for the jitter.
        sleep: waits, in seconds.
        wall_clock: seconds since 1970.
    """

    upstream: Upstream
    policy: RetryPolicy
    loop_memory: LoopMemory
    tell_looped: TellLooped
    report: Report
    accounts: Accounts
    later: Later
    first_delta_timeout_s: float
    keepalive_s: float
    max_event_bytes: int
    max_held_bytes: int
    draw: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    wall_clock: Callable[[], float]


class Exchange:
    """Serves one request of a guarded path.

    Args:
        shared: what it has in common with the others.
        request: the caller's.
        plan: what is sent upstream.
        path: below the upstream's base URL, with its query.
        dialect: of the path.
        profile: how it is served.
        relay: ``hold`` or ``live``, for a caller that asked for a stream.

    Attributes:
        record: what is kept of it.
        began_at: when the request came, on the loop's clock.
    """

    def __init__(
        self,
        shared: Shared,
        request: web.Request,
        plan: Plan,
        *,
        path: str,
        dialect: Dialect,
        profile: Profile,
        relay: Relay,
    ) -> None:
        self._shared = shared
        self._headers = request.headers
        self._path = path
        self._dialect = dialect
        self._profile = profile
        self._live = plan.stream and relay == "live"
        self._plan = plan
        self._caller = Caller(request, shared.keepalive_s if plan.stream else 0)
        self._outcomes: list[Outcome] = []
        self._clocks: Clocks | None = None
        self._attempt: Attempt | None = None
        self._number = 0
        self._body = plan.body
        self._useless_steps: list[Step] = []
        self._floor_factor = floor_factor(plan.asked) if profile.request_gate else 1.0
        self._draining = False
        self.began_at = asyncio.get_running_loop().time()
        self._came_at = perf_counter()  # the loop's clock is too coarse for durations
        self._ends_at = self.began_at + shared.policy.exchange_timeout_s
        self.record = ExchangeRecord(
            exchange=_new_id(shared.wall_clock()),
            dialect=dialect.NAME,
            profile=profile.name,
            relay="live" if self._live else "hold",
            stream=plan.stream,
            model=plan.model,
            run=crossing.run_of(request.headers, plan.session),
            traceparent=request.headers.get("traceparent"),
        )

    @property
    def held_bytes(self) -> int:
        """What is held of the last attempt's reply."""
        return 0 if self._attempt is None else self._attempt.relay.held_bytes

    @property
    def _committed(self) -> bool:
        """Whether a byte of a reply has reached the caller."""
        return self._attempt is not None and self._attempt.relay.committed

    def sight(self) -> Sight:
        """What an operator sees of it now."""
        detector = None if self._attempt is None else self._attempt.detector
        return Sight(
            exchange=self.record.exchange,
            model=ledger.name(self.record.model or ""),
            profile=self.record.profile,
            dialect=self.record.dialect,
            run=self.record.run and ledger.name(self.record.run),
            attempt=max(1, self._number),
            elapsed_s=asyncio.get_running_loop().time() - self.began_at,
            state=self.state,
            chars=0 if detector is None else detector.chars,
            levels={} if detector is None else detector.judged_levels(),
        )

    @property
    def state(self) -> State:
        """What it is at."""
        attempt, ended = self._attempt, self.record.attempts
        if len(ended) == self._number and ended:
            return "delivering" if ended[-1].outcome == "completed" else "waiting"
        if attempt is None or attempt.first_delta_s is None:
            return "asking"
        if attempt.detector.suspected:
            return "suspected"
        return "streaming" if self._live else "holding"

    def drain(self) -> None:
        """End the exchange: this process cannot wait any longer."""
        self._draining = True
        if self._clocks is not None:
            self._clocks.drain()

    async def run(self) -> web.StreamResponse:
        """Serve the request to its end, and report it whatever happens."""
        self._shared.report.exchange_began()
        try:
            with self._caller.kept_alive():
                async with asyncio.timeout_at(self._ends_at + _DELIVERY_S):
                    return await self._caller.answer(await self._serve())
        except TimeoutError:
            self.record.outcome = outcome_name(Departed())
            self._caller.abandon()
            raise CallerGone from None
        except (asyncio.CancelledError, CallerGone):
            self.record.outcome = outcome_name(Departed())
            raise
        except Exception:  # noqa: BLE001 - the caller is told, in the stream where one is open
            self._shared.report.own_fault()
            return await self._fail(InternalFault("loopguard has failed on this request"))
        finally:
            self.record.duration_s = perf_counter() - self._came_at
            self._shared.report.exchange_ended(self.record)
            self._shared.later.add(self._write_down)

    def _write_down(self) -> None:
        self._shared.report.write_down(self.record)
        self._shared.accounts.exchange_ended(self.record)

    async def _serve(self) -> web.StreamResponse:
        """Make attempts until one of them decides."""
        policy = self._shared.policy
        if remembered := self._remembered_replies():
            policy = replace(policy, max_attempts=policy.max_attempts - remembered)
        if policy.max_attempts <= 0:
            return await self._refuse_remembered()
        for number in count(1):
            attempt = self._attempt = self._new_attempt(number)
            outcome = await self._run(attempt, number)
            if self._nobody_is_left(outcome):
                # What was refused is our change of the request; the caller is not told of it.
                if number < policy.max_attempts:
                    continue
                break
            self._outcomes.append(outcome)
            decision = decide(
                outcome,
                number,
                policy,
                committed=attempt.relay.committed,
                left_s=self._ends_at - asyncio.get_running_loop().time(),
                draw=self._shared.draw(),
                useless=self._useless(),
            )
            match decision:
                case Deliver():
                    return await self._deliver(attempt, outcome)
                case GiveUp():
                    break
                case Retry(after_s):
                    if drained := await self._wait(after_s):
                        self._outcomes.append(drained)
                        break
            if self._caller.gone:
                raise CallerGone
        return await self._give_up(attempt)

    def _new_attempt(self, number: int) -> Attempt:
        shared = self._shared
        self._number = number
        figures = replace(self.record.figures(), attempts=number)
        relay = (
            LiveRelay(self._caller, self._plan, figures, shared.max_held_bytes)
            if self._live
            else HeldRelay(self._caller, self._plan, figures, shared.max_held_bytes, self._dialect)
        )
        clocks = self._begin_clocks(
            call_timeout_s=self._profile.call_timeout_s,
            first_delta_timeout_s=shared.first_delta_timeout_s,
            stream_idle_s=self._profile.stream_idle_s,
        )
        detector = Detector(self._profile.detection, self._floor_factor)
        return Attempt(detector, self._dialect, relay, clocks, shared.max_event_bytes)

    def _next_body(self) -> bytes:
        """The request as the operator wants it after the trips that there were."""
        loops = [attempt for attempt in self.record.attempts if attempt.outcome == "looped"]
        return self._profile.escape.body(
            self._plan.body,
            len(loops),
            [attempt.provider for attempt in loops if attempt.provider is not None],
            without=self._useless_steps,
        )

    def _next_headers(self) -> crossing.Headers:
        looped = any(isinstance(outcome, Tripped) for outcome in self._outcomes)
        return crossing.clearing_cache(self._headers) if looped else self._headers

    def _nobody_is_left(self, outcome: Outcome) -> bool:
        """Whether ignoring a provider left none; the next attempt goes without that step."""
        if (
            not isinstance(outcome, Refused)
            or outcome.status != NO_PROVIDER_STATUS
            or "ignore_provider" in self._useless_steps
        ):
            return False
        self._useless_steps.append("ignore_provider")
        return self._next_body() != self._body

    def _useless(self) -> bool:
        """Whether the same request would be sent again although it brought the same text twice."""
        return (
            self._profile.stop_on_identical
            and identical(self._outcomes)
            and self._next_body() == self._body
        )

    async def _run(self, attempt: Attempt, number: int) -> Outcome:
        """Make an attempt and report its end, that by the caller's leaving included."""
        began_at = perf_counter()
        after_s = began_at - self._came_at
        outcome: Outcome = Departed()
        try:
            self._body = self._next_body()
            outcome = await attempt.run(
                self._shared.upstream, self._path, self._next_headers(), self._body
            )
        finally:
            duration_s = perf_counter() - began_at
            record = _record(attempt, number, outcome, after_s=after_s, duration_s=duration_s)
            if self._profile.log_sample and isinstance(outcome, Tripped):
                record = replace(record, sample=outcome.trip.sample or None)
            self.record.attempts.append(record)
            self.record.own_time_s += attempt.own_time_s
            self._shared.report.attempt_ended(self.record, record)
            # Also when the caller has left: the upstream is closed by then.
            await self._shared.accounts.attempt_ended(
                self.record, record, self._shared.upstream.key(self._headers)
            )
        return outcome

    def _begin_clocks(self, **limits: float) -> Clocks:
        self._clocks = Clocks(self._ends_at, self._shared.policy.exchange_timeout_s, **limits)
        if self._draining:
            self._clocks.drain()
        return self._clocks

    async def _wait(self, after_s: float) -> Outcome | None:
        """Wait before the next attempt; say what ended the exchange meanwhile."""
        clocks = self._begin_clocks()
        try:
            async with clocks:
                await self._shared.sleep(after_s)
        except TimeoutError:
            return clocks.expired
        return None

    async def _deliver(self, attempt: Attempt, outcome: Outcome) -> web.StreamResponse:
        """Give the caller what the last attempt brought."""
        if isinstance(outcome, Refused) and not self._has_part(attempt, outcome):
            return await self._pass_refusal(outcome)
        self.record.outcome = outcome_name(outcome)
        self.record.usage = attempt.usage
        return await attempt.relay.deliver()

    def _has_part(self, attempt: Attempt, refused: Refused) -> bool:
        """Whether the error came after part of a reply, and is passed on with that part."""
        told = self._plan.stream or self._dialect.FAULT_IN_WHOLE
        return told and refused.in_stream and attempt.first_delta_s is not None

    async def _give_up(self, attempt: Attempt) -> web.StreamResponse:
        """Tell the caller why there is no reply."""
        told = conclude(self._outcomes, useless=self._useless())
        if isinstance(told, Refused):
            return await self._deliver(attempt, told)
        self.record.outcome = outcome_name(self._outcomes[-1])
        if isinstance(told, ModelResponseLoop):
            self.record.outcome = "looped"
            await self._remember(told)
            self._shared.report.loops_exhausted(self.record)
        return await self._fail(told)

    async def _pass_refusal(self, refused: Refused) -> web.StreamResponse:
        """Pass on the upstream's own error."""
        self.record.outcome = outcome_name(refused)
        self.record.status = refused.status
        figures = self.record.figures()
        if self._caller.opened:
            event = self._dialect.refusal_event(refused, self._seen())
            return await self._caller.close(figures.comment() + event)
        response = web.Response(status=refused.status, body=refused.body)
        for name, value in (*refused.headers, *figures.headers()):
            response.headers.add(name, value)
        if refused.retryable:
            # The budget is spent: an SDK that asked again by itself would multiply it.
            response.headers["X-Should-Retry"] = "false"
        return response

    async def _fail(self, error: LoopguardError) -> web.StreamResponse:
        """Answer with an error of ours: in the stream where there is one, else by status.

        A loop fails a stream inside it, even where the head has not left yet: callers take that
        as a failure and ask only once (clients.md).
        """
        figures = self.record.figures()
        in_stream = self._caller.opened or isinstance(error, ModelResponseLoop)
        if not (self._plan.stream and in_stream):
            self.record.status = error.status
            return error_response(error, self._dialect.error_body(error), figures.headers())
        if (
            self._profile.live_trip == "finish"
            and self._committed
            and isinstance(error, ModelResponseLoop)
        ):
            ending = self._dialect.finish_event(self._seen())
        else:
            ending = self._dialect.error_event(error, self._seen())
        headers = [*figures.headers(), *error_headers(error)]
        return await self._caller.close(figures.comment() + ending, headers)

    def _seen(self) -> Seen:
        """What an event of ours continues: the stream that the caller has seen, or none."""
        now = int(self._shared.wall_clock())
        attempt = self._attempt
        if attempt is not None and self._committed and attempt.origin is not None:
            unfinished = sorted(set(attempt.begun) - attempt.relay.finished)
            return Seen(attempt.origin, now, attempt.relay.last, tuple(unfinished))
        ours = GenerationId(f"loopguard-{self.record.exchange}", self._plan.model, None)
        return Seen(ours, now, None)

    def _request_digest(self) -> bytes:
        return digest(
            self._dialect.NAME, self._plan.canonical(), crossing.credential(self._headers)
        )

    def _remembered_replies(self) -> int:
        """Looping replies that this request has cost lately."""
        memory = self._shared.loop_memory
        return memory.replies(self._request_digest()) if len(memory) else 0

    async def _remember(self, error: ModelResponseLoop) -> None:
        """Remember the loops everywhere before the caller is told, who may ask again at once."""
        loops = sum(isinstance(outcome, Tripped) for outcome in self._outcomes)
        request = self._request_digest()
        self._shared.loop_memory.remember(request, error, loops)
        await self._shared.tell_looped(request, error, loops)

    async def _refuse_remembered(self) -> web.StreamResponse:
        self.record.outcome = "remembered"
        self._shared.report.loop_memory_refused()
        return await self._fail(self._shared.loop_memory.refusal(self._request_digest()))


def _new_id(now_s: float) -> str:
    """A name for an exchange, 32 hexadecimal digits: milliseconds, then chance.

    Names that sort by their time let the ledger's index grow at its end, however large it is.
    """
    return f"{int(now_s * 1000):012x}{secrets.token_hex(10)}"


def _record(
    attempt: Attempt, number: int, outcome: Outcome, *, after_s: float, duration_s: float
) -> AttemptRecord:
    origin = attempt.origin or GenerationId(None, None, None)
    trip = outcome.trip if isinstance(outcome, Tripped) else None
    return AttemptRecord(
        attempt=number,
        outcome=outcome_name(outcome),
        words=attempt.detector.words,
        chars=attempt.detector.chars,
        duration_s=duration_s,
        after_s=after_s,
        first_delta_s=attempt.first_delta_s,
        generation=origin.id,
        model=origin.model,
        provider=origin.provider,
        status=outcome.status if isinstance(outcome, Refused) else None,
        reason=outcome.reason if isinstance(outcome, Broken) else None,
        unreachable=attempt.unreachable or None,
        trip=trip.sentence if trip else None,
        rule=trip.rule if trip else None,
        channel=trip.channel if trip else None,
    )
