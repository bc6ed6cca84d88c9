"""One upstream request: open, read, feed, act, close. This is the hot path.

Theory. What costs is not what is done with a read but whatever is done around it: a task that is
woken, a coroutine, a timer, an object for each event. So a network read is served where it arrives,
in one chain of calls from the transport of the upstream to that of the caller (`_receive`):

1. The tap (`loopguard.proxy.tap`) takes the read's HTTP apart: one whole HTTP chunk by itself, all
   else by aiohttp.
2. The reader (`loopguard.core.dialects.reader`) finds the text that came, mostly without cutting
   the bytes into events; what is more than text it parses.
3. The detector reads the text.
4. The clock of silence is restarted: one assignment.
5. The relay keeps the bytes, or writes them to the caller as they came, in one write.

The task of the exchange sleeps meanwhile. It is woken when the attempt has come to its end, and
when the caller takes its reply too slowly: then nothing more is read until it has caught up.

What a piece of the stream means is decided in `_take` and below, which do no I/O; what follows from
the attempt's end is decided in `loopguard.core.retry`.
"""

from collections.abc import Collection
from time import perf_counter
from typing import assert_never

import aiohttp

from loopguard.core import json_text, sse
from loopguard.core.detection.detector import Detector, Trip
from loopguard.core.dialects import Dialect
from loopguard.core.dialects.faults import read_fault
from loopguard.core.dialects.reader import Reader
from loopguard.core.events import (
    CARRYING,
    ArgumentsDelta,
    CallBegan,
    Done,
    Event,
    Finish,
    GenerationId,
    OtherDelta,
    Parsed,
    Place,
    ReasoningDelta,
    Run,
    TextDelta,
    UpstreamFault,
    Usage,
)
from loopguard.core.retry import Broken, Completed, Outcome, Refused, Stalled, Tripped
from loopguard.proxy import headers as crossing
from loopguard.proxy.clocks import Clocks
from loopguard.proxy.relay import Relay
from loopguard.proxy.tap import tap
from loopguard.proxy.upstream import Upstream, why_unusable

_OK = 200

# No request was sent, so nothing was generated.
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)

# The stream's own headers do not describe the body that is made of an error inside it.
_HEADERS_OF_A_FAULT = (("Content-Type", "application/json"),)

# An error is a few hundred bytes; some providers add what their own upstream said.
_MAX_REFUSAL_BYTES = 1_048_576


class Attempt:
    """One upstream request of an exchange, and what became of it.

    Args:
        detector: watches the reply.
        dialect: what the stream is written in.
        relay: takes the reply.
        clocks: end it when it takes too long.
        max_event_bytes: bound of one event of the stream.

    Attributes:
        origin: what the stream says of itself, None before it does.
        usage: what the upstream counted, None where it did not say.
        first_delta_s: seconds to the first delta that carries something, None where none came.
        own_time_s: seconds of the processor that loopguard spent on what came.
        unreachable: whether no connection to the upstream came about.
    """

    def __init__(
        self,
        detector: Detector,
        dialect: Dialect,
        relay: Relay,
        clocks: Clocks,
        max_event_bytes: int,
    ) -> None:
        self.relay = relay
        self.clocks = clocks
        self.detector = detector
        self.origin: GenerationId | None = None
        self.usage: Usage | None = None
        self.first_delta_s: float | None = None
        self.own_time_s = 0.0
        self.unreachable = False
        self._dialect = dialect
        self._reader = Reader(dialect.Parser(), dialect.TEXT_FIELDS, max_event_bytes)
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._outcome: Outcome | None = None
        self._began_at = perf_counter()

    async def run(
        self, upstream: Upstream, path: str, headers: crossing.Headers, body: bytes
    ) -> Outcome:
        """Make the request and read its reply to the end, or to where it is abandoned."""
        try:
            async with self.clocks:
                response = await upstream.open("POST", path, headers, body)
                try:
                    outcome = await self._converse(response)
                except BaseException:
                    upstream.abandon(response)
                    raise
                if isinstance(outcome, Completed):
                    upstream.finish(response)
                else:
                    upstream.abandon(response)
                return outcome
        except aiohttp.ClientError as error:
            self.unreachable = isinstance(error, _NOT_CONNECTED)
            return self._ended(why_unusable(error))
        except TimeoutError:
            expired = self.clocks.expired
            if expired is None:
                raise
            # A reply whose finish was seen has come to its end, whatever is still missing.
            if isinstance(expired, Stalled) and self._has_finished:
                return Completed()
            return expired

    @property
    def begun(self) -> Collection[int]:
        """The choices that have begun."""
        return self._begun

    @property
    def _has_finished(self) -> bool:
        """Whether every choice that has begun has its finish reason."""
        return bool(self._finished) and self._begun <= self._finished

    def _ended(self, reason: str) -> Outcome:
        return Completed() if self._has_finished else Broken(reason)

    async def _converse(self, response: aiohttp.ClientResponse) -> Outcome:
        """Judge the head, then read the stream."""
        if response.status != _OK:
            return Refused(
                response.status,
                await _read_refusal(response),
                tuple(crossing.to_caller(response.headers)),
                crossing.retry_after_s(response.headers.getall("Retry-After", ())),
            )
        if response.content_type != "text/event-stream":
            return await self._refuse_unstreamed(response)
        self._identify(response.headers.get("X-Generation-Id"))
        self.relay.begin(crossing.to_caller(response.headers))
        return await self._pump(response)

    async def _refuse_unstreamed(self, response: aiohttp.ClientResponse) -> Outcome:
        """Judge a body that is no stream: an error under status 200, or another protocol."""
        body = await _read_refusal(response)
        try:
            answer = json_text.loads(body)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and answer.get("error"):
            fault = read_fault(answer["error"])
            return Refused(fault.status, body, tuple(crossing.to_caller(response.headers)))
        return Broken("the upstream's answer is no event stream", retryable=False)

    def _identify(self, generation_id: str | None) -> None:
        if generation_id:
            self.origin = GenerationId(generation_id, None, None)

    async def _pump(self, response: aiohttp.ClientResponse) -> Outcome:
        """Read, feed, act."""
        body = tap(response)
        while await body.pour(self._receive):
            if self._outcome is not None:
                return self._outcome
            self.clocks.pause()
            await self.relay.catch_up()
            self.clocks.resume()
        return self._ended("the upstream ended its stream in the middle of the reply")

    def _receive(self, chunk: bytes) -> bool:
        """Take what a network read brought; whether more is wanted before the pump has acted."""
        began_at = perf_counter()
        self._outcome = self._take(chunk)
        self.own_time_s += perf_counter() - began_at
        return self._outcome is None and self.relay.flush(self.detector)

    def _take(self, chunk: bytes) -> Outcome | None:
        """Read what has come; say how the attempt ends if it ends here."""
        try:
            lone = self._reader.read_lone(chunk)
            outcome = self._take_many(chunk) if lone is None else self._take_run(chunk, *lone)
            if outcome is not None:
                return outcome
        except sse.EventTooLong as error:
            return Broken(f"the upstream sent {error}", retryable=False)
        except ValueError as error:
            return Broken(f"the upstream does not keep to the protocol: {error}")
        if self.relay.overfull:
            return Broken("the reply is larger than `max_held_bytes`", retryable=False)
        return None

    def _take_many(self, chunk: bytes) -> Outcome | None:
        for read in self._reader.read(chunk):
            outcome = self._take_run(*read) if type(read) is Run else self._take_event(*read)
            if outcome is not None:
                return outcome
        return None

    def _take_run(self, raw: bytes, text: str, place: Place) -> Outcome | None:
        """Take events in that carry text alone."""
        trip = self.detector.feed(place.channel, text, place.choice)
        self._progress()
        if trip is not None:
            return self._tripped(trip)
        self.relay.take_run(raw, text, place.times)
        return None

    def _take_event(self, block: sse.Block, parsed: Parsed | None) -> Outcome | None:
        """Take any other event in, or a comment."""
        if parsed is None:
            self.relay.skip(block.raw)
            return None
        carries = False
        outcome: Outcome | None = None
        for event in parsed.events:
            carries = carries or type(event) in CARRYING
            outcome = self._judge(event) or outcome
            if isinstance(outcome, Tripped):
                break
        if carries:
            self._progress()
        if not isinstance(outcome, Tripped):
            self.relay.take(block, parsed, carries=carries)
        return outcome

    def _progress(self) -> None:
        self.clocks.progress()
        if self.first_delta_s is None:
            self.first_delta_s = perf_counter() - self._began_at

    def _judge(self, event: Event) -> Outcome | None:
        """Take one event in; say how the attempt ends if it ends the attempt."""
        trip = None
        match event:  # not taken apart: such a pattern costs twice what the match does
            case TextDelta():
                self._begun.add(event.choice)
                trip = self.detector.feed("content", event.text, event.choice)
            case ReasoningDelta():
                self._begun.add(event.choice)
                trip = self.detector.feed("reasoning", event.text, event.choice)
            case ArgumentsDelta():
                trip = self.detector.feed("arguments", event.text, event.choice, event.call)
            case CallBegan():
                self._begun.add(event.choice)
                trip = self.detector.begin_call(event.name, event.choice, event.call)
            case OtherDelta():
                pass
            case GenerationId():
                # Not every wire carries the generation's id; the response's headers do.
                known = event.id if self.origin is None else self.origin.id
                self.origin = event._replace(id=known)
            case Usage():
                self.usage = event
            case Finish():
                self._finished.add(event.choice)
                self.relay.finish(event.choice)
                trip = self.detector.take_verdict(event.reason, event.choice)
            case UpstreamFault(status):
                body = self._dialect.fault_body(event)
                return Refused(status, body, _HEADERS_OF_A_FAULT, in_stream=True)
            case Done():
                return Completed()
            case _:
                assert_never(event)
        return None if trip is None else self._tripped(trip)

    def _tripped(self, trip: Trip) -> Tripped:
        detector = self.detector
        return Tripped(trip, detector.words, detector.chars, detector.fingerprint())


async def _read_refusal(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MAX_REFUSAL_BYTES:
            break
    return bytes(body)
