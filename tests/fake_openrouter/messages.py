"""What OpenRouter sends on Anthropic's Messages: a `Reply` as a stream of events, and whole.

Shapes, framing and the place of the ping are those of recorded exchanges with Anthropic; no stream
of OpenRouter's own was recorded.
"""

import json
from collections.abc import Iterator

from tests.fake_openrouter.chat import GENERATION_ID, PROCESSING, Json, Message, Reply, event

FINISHES = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""The stop reasons, by chat's finish reason."""


def events(reply: Reply) -> Iterator[bytes]:
    """The blocks of the stream's body, comments included, in order."""
    yield from [PROCESSING] * reply.comments
    for number, payload in enumerate(_payloads(reply), start=1):
        yield framed(payload)
        if number == 2:
            yield framed({"type": "ping"})
        if reply.comment_every and number % reply.comment_every == 0:
            yield PROCESSING


def stream(reply: Reply) -> bytes:
    """The body of the streamed reply."""
    return b"".join(events(reply))


def framed(payload: Json) -> bytes:
    """One event with its event line."""
    return f"event: {payload['type']}\n".encode() + event(payload)


def failure(kind: str, message: str) -> bytes:
    """The event that ends a stream which failed."""
    error = {"type": kind, "message": message}
    return framed({"type": "error", "error": error, "request_id": GENERATION_ID})


def whole(reply: Reply) -> Json:
    """The body of the reply to a caller that asked for no stream."""
    message = reply.messages[0]
    started = _started(reply)
    return started | {
        "content": list(_blocks(message)),
        "stop_reason": FINISHES[message.finish_reason],
        "usage": started["usage"] | _counted(reply),
    }


def _started(reply: Reply) -> Json:
    return {
        "model": reply.model,
        "id": "msg_01Fake",
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "provider": reply.provider,
        "usage": {
            "input_tokens": reply.usage_object["prompt_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 1,
            "service_tier": "standard",
        },
    }


def _counted(reply: Reply) -> Json:
    usage = reply.usage_object
    return {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "cost": usage["cost"],
    }


def _payloads(reply: Reply) -> Iterator[Json]:
    message = reply.messages[0]
    yield {"type": "message_start", "message": _started(reply)}
    for index, block in enumerate(_blocks(message)):
        yield {"type": "content_block_start", "index": index, "content_block": _empty(block)}
        for delta in _deltas(reply, block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    if reply.fault is not None:
        yield {"type": "error", "error": reply.fault, "request_id": None}
        return
    ended = {"stop_reason": FINISHES[message.finish_reason], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": _counted(reply)}
    yield {"type": "message_stop"}


def _blocks(message: Message) -> Iterator[Json]:
    """The blocks of the whole message."""
    for part in message.reasoning_details:
        if part["type"] == "reasoning.encrypted":
            yield {"type": "redacted_thinking", "data": part["data"]}
        else:
            text = part.get("text") or part.get("summary")
            yield {"type": "thinking", "thinking": text, "signature": part.get("signature", "")}
    if text := message.content or message.refusal:
        block: Json = {"type": "text", "text": text}
        if message.annotations:
            block["citations"] = [_citation(it["url_citation"]) for it in message.annotations]
        yield block
    for call in message.tool_calls:
        yield {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": _input(call.arguments),
        }


def _input(arguments: str) -> object:
    """The arguments as the object that the wire has; a loop of text is no JSON of its own."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {"text": arguments}


def _citation(url_citation: Json) -> Json:
    return {
        "type": "web_search_result_location",
        "cited_text": url_citation["content"],
        "url": url_citation["url"],
        "title": url_citation["title"],
        "encrypted_index": "Eo8BCioIAhgB",
    }


def _empty(block: Json) -> Json:
    """The block as its start brings it."""
    match block["type"]:
        case "text":
            start: Json = {"type": "text", "text": ""}
            return start | ({"citations": []} if "citations" in block else {})
        case "thinking":
            return block | {"thinking": "", "signature": ""}
        case "tool_use":
            return block | {"input": {}}
        case _:
            return block


def _deltas(reply: Reply, block: Json) -> Iterator[Json]:
    match block["type"]:
        case "text":
            for citation in block.get("citations", ()):
                yield {"type": "citations_delta", "citation": citation}
            for piece in reply.pieces(block["text"]):
                yield {"type": "text_delta", "text": piece}
        case "thinking":
            for piece in reply.pieces(block["thinking"]):
                yield {"type": "thinking_delta", "thinking": piece}
            if block["signature"]:
                yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            yield {"type": "input_json_delta", "partial_json": ""}
            for piece in reply.pieces(json.dumps(block["input"], ensure_ascii=False)):
                yield {"type": "input_json_delta", "partial_json": piece}
