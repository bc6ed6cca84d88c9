"""A span for each exchange and one for each of its attempts, made of their records.

Spans are made after an exchange has ended, so none of its replies waits for them; a thread of the
SDK's sends them. Names are those of OpenTelemetry's semantic conventions for generative AI (1.37
and later: ``gen_ai.provider.name``), and ``loopguard.`` for what they have no word for. Nothing of
a prompt, a reply, a key or a header is in a span but the ``traceparent`` that makes it the child of
its caller's. Names that callers and upstreams write are bounded as in the ledger, and half a
surrogate pair is replaced there: the SDK would throw away every span of the batch that it is in.

Where spans go, which are sampled and what the service is called is the SDK's to read from its
``OTEL_`` variables. This module is imported only where ``traces.enabled`` is set: it needs the
extra ``otel``.
"""

import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from threading import Thread
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from loopguard.billing import ledger
from loopguard.proxy.record import AttemptRecord, ExchangeRecord

_OPERATIONS = {"completions": "text_completion"}
"""The conventions' name of a dialect's operation; the others are ``chat``."""

_PORTS = {"http": 80, "https": 443}

# What a process that ends may wait for the last spans. The SDK would wait for half a minute where
# the collector is away.
_LAST_SPANS_S = 2.0

_NS = 1_000_000_000


class Traces:
    """Makes spans of records and sends them.

    Args:
        base_url: the upstream's.
    """

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self._upstream: dict[str, AttributeValue | None] = {
            "gen_ai.provider.name": parts.hostname,
            "server.address": parts.hostname,
            "server.port": parts.port or _PORTS.get(parts.scheme),
        }
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("loopguard", version("loopguard"))
        self._propagator = TraceContextTextMapPropagator()

    def record(self, exchange: ExchangeRecord) -> None:
        """Make the spans of an exchange that has just ended."""
        ended_ns = time.time_ns()
        began_ns = ended_ns - int(exchange.duration_s * _NS)
        span = self._begin(exchange, SpanKind.SERVER, self._caller_of(exchange), began_ns)
        if span.is_recording():
            _describe(span, exchange.outcome, _of_exchange(exchange))
            for attempt in exchange.attempts:
                at_ns = began_ns + int(attempt.after_s * _NS)
                child = self._begin(exchange, SpanKind.CLIENT, set_span_in_context(span), at_ns)
                _describe(child, attempt.outcome, self._upstream | _of_attempt(exchange, attempt))
                child.end(at_ns + int(attempt.duration_s * _NS))
        span.end(ended_ns)

    def close(self) -> None:
        """Send what is left, within reason; it blocks for as long."""
        ending = Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_LAST_SPANS_S)

    def _begin(self, exchange: ExchangeRecord, kind: SpanKind, parent: Context, at_ns: int) -> Span:
        name = f"{_operation(exchange)} {ledger.name(exchange.model or '')}".rstrip()
        return self._tracer.start_span(name, parent, kind, start_time=at_ns)

    def _caller_of(self, exchange: ExchangeRecord) -> Context:
        """The caller's own span, where its request named one."""
        carrier = {"traceparent": exchange.traceparent} if exchange.traceparent else {}
        # An empty context, or the span that happens to be current here would be the parent.
        return self._propagator.extract(carrier, Context())


def _resource() -> Resource:
    """What the ``OTEL_`` variables say of this service, by our own name where they name none."""
    resource = Resource.create({SERVICE_VERSION: version("loopguard")})
    named = str(resource.attributes[SERVICE_NAME])
    if named.startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: "loopguard"}))
    return resource


def _operation(exchange: ExchangeRecord) -> str:
    return _OPERATIONS.get(exchange.dialect, "chat")


def _describe(span: Span, outcome: str, attributes: Mapping[str, AttributeValue | None]) -> None:
    known = {
        name: ledger.name(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }
    span.set_attributes(known | {"loopguard.outcome": outcome})
    if outcome != "completed":
        span.set_attribute("error.type", outcome)
        span.set_status(StatusCode.ERROR)


def _of_exchange(exchange: ExchangeRecord) -> dict[str, AttributeValue | None]:
    figures = exchange.figures()
    usage = exchange.usage
    return dict(_of_request(exchange)) | {
        "gen_ai.conversation.id": exchange.run,
        "gen_ai.usage.input_tokens": usage and usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage and usage.completion_tokens,
        "http.response.status_code": exchange.status,
        "loopguard.dialect": exchange.dialect,
        "loopguard.profile": exchange.profile,
        "loopguard.relay": exchange.relay,
        "loopguard.attempts": figures.attempts,
        "loopguard.loop_aborts": figures.loop_aborts,
        "loopguard.loop_abort_words": figures.loop_abort_words,
        "loopguard.loop_abort_chars": figures.loop_abort_chars,
        "loopguard.own_time_s": exchange.own_time_s,
        "loopguard.cost_usd": usage and usage.cost_usd,
    }


def _of_attempt(
    exchange: ExchangeRecord, attempt: AttemptRecord
) -> dict[str, AttributeValue | None]:
    # The model's provider where the upstream names it; else the upstream's host stands for it.
    provider = {"gen_ai.provider.name": attempt.provider} if attempt.provider else {}
    return (
        dict(_of_request(exchange))
        | provider
        | {
            "gen_ai.response.id": attempt.generation,
            "gen_ai.response.model": attempt.model,
            "gen_ai.response.time_to_first_chunk": attempt.first_delta_s,
            "http.response.status_code": attempt.status,
            "loopguard.attempt": attempt.attempt,
            "loopguard.words": attempt.words,
            "loopguard.chars": attempt.chars,
            "loopguard.rule": attempt.rule,
            "loopguard.channel": attempt.channel,
        }
    )


def _of_request(exchange: ExchangeRecord) -> Iterator[tuple[str, AttributeValue | None]]:
    yield "gen_ai.operation.name", _operation(exchange)
    yield "gen_ai.request.model", exchange.model
    yield "gen_ai.request.stream", exchange.stream
    yield "loopguard.exchange", exchange.exchange
