"""What OpenRouter sends on Chat Completions: one description of a reply, streamed and whole.

Shapes, key order and framing are those of recorded exchanges; `tests/contract` holds this module to
them. Two ages of the wire are spoken, 2025 and 2026. Everything is deterministic. Bytes carry
`GENERATION_ID` where the id of the generation belongs: the server writes the real one, of the same
length, over it as they leave.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Literal

GENERATION_ID = "gen-0000000000-00000000000000000000"
CREATED = 1783514921

PROCESSING = b": OPENROUTER PROCESSING\n\n"
DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]
UsageShape = Literal["bare", "no_choices", "repeated"]


def event(payload: Json | str) -> bytes:
    """One server-sent event as OpenRouter frames it: a data line and a blank one, LF only."""
    text = payload if isinstance(payload, str) else compact(payload)
    return b"data: " + text.encode() + b"\n\n"


def compact(payload: Json) -> str:
    """JSON as OpenRouter writes it: no spaces, no escapes that UTF-8 does not need."""
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False)


def fault(
    code: int | str,
    message: str,
    error_type: str | None = None,
    *,
    choices: bool = True,
    generation_id: str = GENERATION_ID,
) -> bytes:
    """An error inside a stream whose status was 200.

    With choices it is the documented shape (delta empty, finish reason `error`); without, the one
    recorded when the provider failed before its first token (`"choices":[]`). The third recorded
    shape, the error on the usage chunk, is `Reply(fault=...)`.
    """
    error: Json = {"code": code, "message": message}
    if error_type is not None:
        error["metadata"] = {"error_type": error_type}
    payload: Json = {
        "id": generation_id,
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": "openai/gpt-4o-mini",
        "provider": "OpenAI",
        "error": error,
        "choices": [],
    }
    if choices:
        payload["choices"] = [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]
    return event(payload)


def thought(text: str, signature: str | None = None, index: int = 0) -> Json:
    """Readable reasoning; a signature arrives in a late delta of its own."""
    if signature is None:
        return {"type": "reasoning.text", "text": text, "format": "unknown", "index": index}
    return {
        "type": "reasoning.text",
        "text": text,
        "signature": signature,
        "format": "anthropic-claude-v1",
        "index": index,
    }


def summary(text: str, index: int = 0) -> Json:
    """A summary of reasoning that is kept from the caller."""
    return {
        "type": "reasoning.summary",
        "summary": text,
        "format": "openai-responses-v1",
        "index": index,
    }


def encrypted(blob: str, item_id: str = "rs_1", index: int = 0) -> Json:
    """Reasoning that only the provider can read; it arrives whole."""
    return {
        "type": "reasoning.encrypted",
        "data": blob,
        "id": item_id,
        "format": "openai-responses-v1",
        "index": index,
    }


def citation(url: str, title: str = "", content: str = "") -> Json:
    """An annotation of a web search."""
    return {
        "type": "url_citation",
        "url_citation": {
            "url": url,
            "title": title,
            "start_index": 0,
            "end_index": 0,
            "content": content,
        },
    }


def image(url: str = "data:image/png;base64,iVBORw0KGgo=") -> Json:
    """A picture in the reply."""
    return {"type": "image_url", "image_url": {"url": url}}


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool; `arguments` is JSON text."""

    name: str
    arguments: str
    id: str


@dataclass(frozen=True)
class Message:
    """What one choice of a reply says.

    Attributes:
        content: the answer.
        reasoning: the thinking, as text or as the `reasoning_details` of the whole reply.
        tool_calls: calls in the order of their index.
        annotations, images: as in the whole reply.
        refusal: why the model will not answer.
        logprobs: whether each piece of the answer carries log probabilities.
        finish: the finish reason; `tool_calls` where there are calls.
    """

    content: str = ""
    reasoning: str | tuple[Json, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    annotations: tuple[Json, ...] = ()
    images: tuple[Json, ...] = ()
    refusal: str | None = None
    logprobs: bool = False
    finish: str | None = None

    @property
    def finish_reason(self) -> str:
        """The finish reason that is sent."""
        return self.finish or ("tool_calls" if self.tool_calls else "stop")

    @property
    def reasoning_details(self) -> tuple[Json, ...]:
        """The thinking in its parts."""
        if isinstance(self.reasoning, str):
            return (thought(self.reasoning),)
        return self.reasoning


@dataclass(frozen=True)
class Reply:
    """A reply that completes, described once for the stream and for the whole object.

    Attributes:
        message: the only choice, or its answer; ignored where `choices` is given.
        choices: several choices, streamed in turns.
        age: which of the recorded wires the stream speaks.
        usage_shape: how usage ends the stream: on a chunk with an empty delta and no finish
            reason, on a chunk without choices, or on a chunk that repeats the finish reason.
        fault: an error that the usage chunk carries beside a finish reason `length`.
        comments: comments before the first chunk.
        comment_every: a comment after each so many chunks; 0 for none.
        delta_chars: size of a delta.
        usage: overrides of the usage object.
    """

    message: str | Message = ""
    choices: tuple[Message, ...] = ()
    model: str = "openai/gpt-4o-mini"
    provider: str = "OpenAI"
    age: Literal[2025, 2026] = 2026
    usage_shape: UsageShape = "repeated"
    fault: Json | None = None
    comments: int = 1
    comment_every: int = 0
    delta_chars: int = 8
    usage: Json | None = None

    def events(self) -> Iterator[bytes]:
        """The blocks of the stream's body, comments and sentinel included, in order."""
        yield from [PROCESSING] * self.comments
        for number, chunk in enumerate(self._chunks(), start=1):
            yield event(chunk)
            if self.comment_every and number % self.comment_every == 0:
                yield PROCESSING
        yield DONE

    def stream(self, generation_id: str = GENERATION_ID) -> bytes:
        """The body of the streamed reply."""
        return b"".join(self.events()).replace(GENERATION_ID.encode(), generation_id.encode())

    def whole(self, generation_id: str = GENERATION_ID) -> Json:
        """The body of the reply to a caller that asked for no stream."""
        return {
            "id": generation_id,
            "object": "chat.completion",
            "created": CREATED,
            "model": self.model,
            "provider": self.provider,
            "system_fingerprint": None,
            "service_tier": None,
            "choices": [
                {
                    "index": index,
                    "logprobs": self._all_logprobs(message) if message.logprobs else None,
                    "finish_reason": message.finish_reason,
                    "native_finish_reason": message.finish_reason,
                    "message": _whole_message(message),
                }
                for index, message in enumerate(self.messages)
            ],
            "usage": self.usage_object,
        }

    @property
    def messages(self) -> tuple[Message, ...]:
        """What each choice says."""
        if self.choices:
            return self.choices
        return (self.message if isinstance(self.message, Message) else Message(self.message),)

    @property
    def usage_object(self) -> Json:
        """The usage as chat tells it."""
        return {
            "prompt_tokens": 254,
            "completion_tokens": 500,
            "total_tokens": 754,
            "cost": 0.008262,
            "is_byok": False,
            "prompt_tokens_details": {
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                "audio_tokens": 0,
                "video_tokens": 0,
            },
            "cost_details": {
                "upstream_inference_cost": 0.008262,
                "upstream_inference_prompt_cost": 0.000762,
                "upstream_inference_completions_cost": 0.0075,
            },
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "image_tokens": 0,
                "audio_tokens": 0,
            },
        } | (self.usage or {})

    def _chunks(self) -> Iterator[Json]:
        turns = zip_longest(*(self._deltas(message) for message in self.messages))
        for turn in turns:
            for index, choice in enumerate(turn):
                if choice is not None:
                    delta, logprobs = choice
                    yield self._chunk([self._choice(index, delta, logprobs=logprobs)])
        finished = [
            self._choice(index, self._delta(), finish=message.finish_reason)
            for index, message in enumerate(self.messages)
        ]
        for choice in finished:
            yield self._chunk([choice])
        yield self._last_chunk(finished)

    def _last_chunk(self, finished: list[Json]) -> Json:
        unfinished = [self._choice(index, self._delta()) for index in range(len(finished))]
        choices = {"bare": unfinished, "no_choices": [], "repeated": finished}[self.usage_shape]
        extra: Json = {}
        if self.fault is not None:
            extra["error"] = self.fault
        if self.usage_shape == "repeated":
            extra["service_tier"] = None
        return self._chunk(choices, **extra) | {"usage": self.usage_object}

    def _chunk(self, choices: list[Json], **extra: Any) -> Json:
        head: Json = {"object": "chat.completion.chunk", "created": CREATED}
        origin: Json = {"model": self.model, "provider": self.provider}
        if self.age == 2025:
            origin = {"provider": self.provider, **extra, "model": self.model}
            return {"id": GENERATION_ID, **origin, **head, "choices": choices}
        return {"id": GENERATION_ID, **head, **origin, **extra, "choices": choices}

    def _choice(
        self, index: int, delta: Json, *, finish: str | None = None, logprobs: Json | None = None
    ) -> Json:
        choice = {
            "index": index,
            "delta": delta,
            "finish_reason": finish,
            "native_finish_reason": finish,
        }
        if self.age == 2025 or logprobs is not None:
            choice["logprobs"] = logprobs
        return choice

    def _delta(self, content: str = "", **more: Any) -> Json:
        if self.age == 2025:
            return {"role": "assistant", "content": content, **more}
        return {"content": content, "role": "assistant", **more}

    def _deltas(self, message: Message) -> Iterator[tuple[Json, Json | None]]:
        """The deltas of one choice, each with its log probabilities."""
        plain = chain(
            chain.from_iterable(self._reasoning(part) for part in message.reasoning_details),
            chain.from_iterable(
                self._tool_call(index, call) for index, call in enumerate(message.tool_calls)
            ),
            (self._delta(refusal=piece) for piece in self.pieces(message.refusal or "")),
        )
        yield from ((delta, None) for delta in plain)
        for piece in self.pieces(message.content):
            yield self._delta(piece), _logprobs([piece]) if message.logprobs else None
        for annotation in message.annotations:
            yield self._delta(annotations=[annotation]), None
        for picture in message.images:
            yield self._delta(images=[picture]), None

    def _reasoning(self, part: Json) -> Iterator[Json]:
        """A part in its deltas: text in pieces, then the signature alone; a blob in one."""
        text_key = {"reasoning.text": "text", "reasoning.summary": "summary"}.get(part["type"])
        if text_key is None:
            yield self._delta(reasoning=None, reasoning_details=[part])
            return
        signed = part.get("signature")
        unsigned = {key: value for key, value in part.items() if key != "signature"}
        for piece in self.pieces(part[text_key]):
            yield self._delta(reasoning=piece, reasoning_details=[unsigned | {text_key: piece}])
        if signed is not None:
            late = {key: value for key, value in part.items() if key != text_key}
            yield self._delta(reasoning=None, reasoning_details=[late])

    def _tool_call(self, index: int, call: ToolCall) -> Iterator[Json]:
        """A call in its deltas: everything but the arguments first, then the arguments."""
        opening = {"name": call.name, "arguments": ""}
        yield self._delta(
            tool_calls=[{"index": index, "id": call.id, "type": "function", "function": opening}]
        )
        for piece in self.pieces(call.arguments):
            fragment = {"index": index, "type": "function", "function": {"arguments": piece}}
            yield self._delta(tool_calls=[fragment])

    def pieces(self, text: str) -> list[str]:
        """A text in its deltas."""
        size = self.delta_chars
        return [text[start : start + size] for start in range(0, len(text), size)]

    def _all_logprobs(self, message: Message) -> Json:
        return _logprobs(self.pieces(message.content))


def loop(
    unit: str = "void 0; ",
    *,
    chars: int = 300_000,
    channel: Literal["content", "reasoning", "arguments"] = "content",
    lead_in: str = "",
    delta_chars: int = 48,
) -> Reply:
    """A reply that repeats `unit` to `chars` characters in one channel, after `lead_in`."""
    text = (lead_in + unit * (chars // len(unit) + 1))[:chars]
    message = {
        "content": Message(content=text),
        "reasoning": Message(reasoning=text),
        "arguments": Message(tool_calls=(ToolCall("write_file", text, "call_1"),)),
    }[channel]
    return Reply(message, delta_chars=delta_chars)


def _whole_message(message: Message) -> Json:
    thoughts = [part.get("text") or part.get("summary") for part in message.reasoning_details]
    whole: Json = {
        "role": "assistant",
        "content": message.content,
        "refusal": message.refusal,
        "reasoning": "".join(text for text in thoughts if text) or None,
    }
    if message.reasoning_details:
        whole["reasoning_details"] = list(message.reasoning_details)
    if message.tool_calls:
        whole["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "index": index,
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(message.tool_calls)
        ]
    if message.annotations:
        whole["annotations"] = list(message.annotations)
    if message.images:
        whole["images"] = list(message.images)
    return whole


def _logprobs(pieces: list[str]) -> Json:
    """One entry for each piece, as a provider counts it for one token."""
    content = [
        {"token": piece, "logprob": -0.25, "bytes": list(piece.encode()), "top_logprobs": []}
        for piece in pieces
    ]
    return {"content": content, "refusal": None}
