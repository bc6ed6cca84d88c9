"""Spans of exchanges and attempts, by the real SDK, at a collector's address on loopback."""

import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai

from tests.end_to_end.conftest import ENVIRONMENT, Guard
from tests.end_to_end.raw_caller import REQUEST, STREAM, ask, calling
from tests.fake_openrouter import Refusal, Reply, head, loop, stall

GOOD = Reply("The good answer.")
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
ON = {"traces__enabled": "true"}


class Collector:
    """What a collector is sent: its spans, and what is said of their service."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        return web.Response(content_type="application/x-protobuf")

    def _resources(self) -> list[Any]:
        return [
            resource
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        ]

    @property
    def spans(self) -> list[Span]:
        scopes = [scope for resource in self._resources() for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    @property
    def service(self) -> dict[str, Any]:
        (resource, *_) = self._resources()
        return values(resource.resource.attributes)


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A collector's stand-in, which OTEL_ variables name."""
    taken = Collector()
    application = web.Application()
    application.router.add_post("/v1/traces", taken.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    yield taken
    await runner.cleanup()


async def test_spans(guarded: Guard, collector: Collector) -> None:
    """An exchange is a span below its caller's, and its attempts are spans below it, in order."""
    async with guarded([loop(), GOOD], **ON) as ours:
        await ask(ours, STREAM, TRACEPARENT | {"X-Loopguard-Run": "run-1"})
    looped, completed, exchange = sorted(collector.spans, key=lambda span: span.end_time_unix_nano)
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert exchange.parent_span_id.hex() == CALLER
    assert looped.parent_span_id == completed.parent_span_id == exchange.span_id
    assert {span.name for span in collector.spans} == {"chat m/x"}
    assert (exchange.kind, looped.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    times = [
        exchange.start_time_unix_nano,
        looped.start_time_unix_nano,
        looped.end_time_unix_nano,
        completed.start_time_unix_nano,
        completed.end_time_unix_nano,
        exchange.end_time_unix_nano,
    ]
    assert times == sorted(times)

    told = values(exchange.attributes)
    assert told[gen_ai.GEN_AI_OPERATION_NAME] == "chat"
    assert told[gen_ai.GEN_AI_REQUEST_MODEL] == "m/x"
    assert told[gen_ai.GEN_AI_CONVERSATION_ID] == "run-1"
    assert told[gen_ai.GEN_AI_REQUEST_STREAM] is True
    assert told[gen_ai.GEN_AI_USAGE_INPUT_TOKENS] > 0
    assert told[gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS] > 0
    assert (told["loopguard.attempts"], told["loopguard.loop_aborts"]) == (2, 1)
    assert told["loopguard.outcome"] == "completed"
    assert "error.type" not in told
    assert exchange.status.code == Status.STATUS_CODE_UNSET

    told = values(looped.attributes)
    assert told[gen_ai.GEN_AI_PROVIDER_NAME] == "OpenAI"
    assert told[gen_ai.GEN_AI_RESPONSE_MODEL] == "openai/gpt-4o-mini"
    assert told[gen_ai.GEN_AI_RESPONSE_ID] == ours.fake.attempts[0].generation_id
    assert told[gen_ai.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] > 0
    assert (told["server.address"], told["server.port"]) == ("127.0.0.1", ours.fake.port)
    assert (told["loopguard.rule"], told["loopguard.channel"]) == ("stretch", "content")
    assert told["error.type"] == "looped"
    assert looped.status.code == Status.STATUS_CODE_ERROR
    assert collector.service["service.name"] == "loopguard"


async def test_without_a_caller_s_span(guarded: Guard, collector: Collector) -> None:
    """Without a caller's span, or with one that is no such thing, an exchange begins a trace."""
    async with guarded([GOOD], **ON) as ours:
        await ask(ours)
        await ask(ours, headers={"traceparent": "nonsense"})
        await ask(ours, {**REQUEST, "prompt": "x"}, path="/v1/completions")
    by_trace = defaultdict(list)
    for span in collector.spans:
        by_trace[span.trace_id].append(span)
    assert [len(spans) for spans in by_trace.values()] == [2, 2, 2]
    assert [span.parent_span_id for span in collector.spans].count(b"") == 3
    assert sum(span.name == "text_completion m/x" for span in collector.spans) == 2


async def test_failures(guarded: Guard, collector: Collector) -> None:
    """A refusal has its status, and a caller who leaves is an error of that name."""
    async with guarded([Refusal(404), [head(), stall]], **ON) as ours:
        await ask(ours)
        async with calling(ours) as caller:
            await ours.fake.attempt(2)
            caller.leave()
            await (await ours.fake.attempt(2)).left()
    told = [values(span.attributes) for span in collector.spans]
    assert sorted(one["error.type"] for one in told) == ["departed"] * 2 + ["refused"] * 2
    refused = [one["http.response.status_code"] for one in told if one["error.type"] == "refused"]
    assert refused == [404, 404]


async def test_nothing_private(guarded: Guard, collector: Collector) -> None:
    """No prompt, reply, key or header is in a span, and what is forwarded is as without spans."""
    secret = {"Authorization": "Bearer sk-planted", "X-Mine": "planted-header"}
    asked = REQUEST | {"messages": [{"role": "user", "content": "planted-prompt"}]}
    async with guarded([loop("planted-loop "), Reply("planted-reply")], **ON) as ours:
        await ask(ours, asked, secret | TRACEPARENT)
    sent = b"".join(collector.bodies)
    assert b"m/x" in sent
    assert b"planted" not in sent
    assert ours.fake.attempts[0].headers["traceparent"] == TRACEPARENT["traceparent"]
    assert all("traceparent" not in record.fields() for record in ours.records)


async def test_odd_names(guarded: Guard, collector: Collector) -> None:
    """A name that cannot be written, or is endless, takes no other span with it and is cut."""
    async with guarded([GOOD], **ON) as ours:
        await ask(ours)
        await ask(ours, b'{"model": "half \\ud800", "messages": []}')
        await ask(ours, REQUEST | {"model": "m" * 100_000, "session_id": "s" * 100_000})
    names = {span.name for span in collector.spans}
    assert names == {"chat m/x", "chat half ?", f"chat {'m' * 256}"}
    assert sum(map(len, collector.bodies)) < 10_000


async def test_collector_away(guarded: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that is away costs callers nothing, and a process that ends waits briefly."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    async with guarded([GOOD], **ON) as ours:
        assert (await ask(ours)).status == 200
        began_at = time.monotonic()
    assert time.monotonic() - began_at < 8  # of the ten that the SDK would wait for an answer


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=ENVIRONMENT | {"LOOPGUARD_UPSTREAM__BASE_URL": "http://127.0.0.1:9"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_refused_without_the_extra(tmp_path) -> None:
    """Where the extra is missing a launch that asks for spans is refused, and says what to do."""
    ended = run(
        """
        import sys
        sys.modules["opentelemetry"] = None
        from loopguard.cli import main
        sys.argv = ["loopguard", "serve"]
        sys.exit(main())
        """,
        LOOPGUARD_TRACES__ENABLED="true",
        STATE_DIRECTORY=str(tmp_path),
    )
    assert ended.returncode == 2, ended.stderr
    assert "traces.enabled: OpenTelemetry is not installed; install loopguard[otel]" in ended.stderr
    assert "Unclosed" not in ended.stderr


def test_off_imports_nothing(tmp_path) -> None:
    """Where spans are off nothing of OpenTelemetry's is imported."""
    ended = run(
        """
        import asyncio, sys
        from loopguard.app import Loopguard
        from loopguard.settings import load

        async def once():
            async with Loopguard(load()):
                pass

        asyncio.run(once())
        print([name for name in sys.modules if name.startswith("opentelemetry")])
        """,
        STATE_DIRECTORY=str(tmp_path),
    )
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
