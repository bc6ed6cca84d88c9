"""What OpenRouter sends on the Responses API: a `Reply` as a stream of events, and whole.

Shapes are those of recorded exchanges. OpenRouter writes data lines alone and ends with the
sentinel; `openai=True` is OpenAI's own framing, with event lines and without a sentinel.
"""

from collections.abc import Iterator

from tests.fake_openrouter.chat import (
    CREATED,
    DONE,
    GENERATION_ID,
    PROCESSING,
    Json,
    Message,
    Reply,
    event,
)

FINISHES = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The reasons of an incomplete response, by chat's finish reason."""


def events(reply: Reply, *, openai: bool = False) -> Iterator[bytes]:
    """The blocks of the stream's body, comments and sentinel included, in order."""
    if not openai:
        yield from [PROCESSING] * reply.comments
    for number, payload in enumerate(_payloads(reply)):
        numbered = payload | {"sequence_number": number}
        line = f"event: {payload['type']}\n".encode() if openai else b""
        yield line + event(numbered)
        if reply.comment_every and (number + 1) % reply.comment_every == 0:
            yield PROCESSING
    if not openai:
        yield DONE


def stream(reply: Reply, *, openai: bool = False) -> bytes:
    """The body of the streamed reply."""
    return b"".join(events(reply, openai=openai))


def failure(code: str, message: str) -> bytes:
    """The event of a response that failed."""
    failed = _response("failed", []) | {"error": {"code": code, "message": message}}
    return event({"type": "response.failed", "response": failed, "error_type": code})


def whole(reply: Reply) -> Json:
    """The body of the reply to a caller that asked for no stream."""
    message = reply.messages[0]
    items = [item | {"status": "completed"} for _, item in _items(reply, message)]
    reason = FINISHES.get(message.finish_reason)
    response = _response("incomplete" if reason else "completed", items, reply.model)
    usage = reply.usage_object
    return response | {
        "incomplete_details": {"reason": reason} if reason else None,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
            "cost": usage["cost"],
            "is_byok": False,
            "cost_details": {
                "upstream_inference_cost": None,
                "upstream_inference_input_cost": 0.000762,
                "upstream_inference_output_cost": 0.0075,
            },
        },
    }


def _response(status: str, output: list[Json], model: str = "openai/gpt-4o-mini") -> Json:
    return {
        "object": "response",
        "id": GENERATION_ID,
        "created_at": CREATED,
        "status": status,
        "error": None,
        "output_text": "",
        "output": output,
        "model": model,
        "incomplete_details": None,
        "max_tool_calls": None,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_output_tokens": None,
        "temperature": None,
        "top_p": None,
        "metadata": {},
        "background": False,
        "previous_response_id": None,
        "service_tier": "auto",
        "truncation": None,
        "store": False,
        "instructions": None,
        "reasoning": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "user": None,
    }


def _payloads(reply: Reply) -> Iterator[Json]:
    begun = _response("in_progress", [], reply.model)
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, (kind, item) in enumerate(_items(reply, reply.messages[0])):
        at = {"output_index": index, "item_id": item["id"]}
        empty = item | {"status": "in_progress"}
        empty |= {name: [] for name in ("content", "summary") if name in item}
        empty |= {name: "" for name in ("arguments",) if name in item}
        empty.pop("result", None)
        empty.pop("encrypted_content", None)
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        for name, value in item.items():
            if name in {"content", "summary"}:
                for part_index, part in enumerate(value):
                    yield from _part(reply, at, name, part_index, part)
            elif name == "arguments":
                yield from _text(reply, at, "function_call_arguments", item, "arguments")
        if kind == "image_generation_call":
            yield {"type": "response.image_generation_call.completed", **at}
        done = item | {"status": "completed"}
        yield {"type": "response.output_item.done", "output_index": index, "item": done}
    if reply.fault is not None:
        failed = _response("failed", [], reply.model) | {"error": reply.fault}
        yield {"type": "response.failed", "response": failed}
        return
    ended = whole(reply)
    yield {"type": f"response.{ended['status']}", "response": ended}


def _part(reply: Reply, at: Json, holder: str, index: int, part: Json) -> Iterator[Json]:
    """A part of an item in its events."""
    name = "refusal" if part["type"] == "refusal" else "text"
    stem = "reasoning_summary_text" if holder == "summary" else part["type"]
    at = at | {"summary_index" if holder == "summary" else "content_index": index}
    family = "reasoning_summary_part" if holder == "summary" else "content_part"
    empty = part | {name: ""}
    empty |= {listed: [] for listed in ("annotations", "logprobs") if listed in part}
    yield {"type": f"response.{family}.added", **at, "part": empty}
    yield from _text(reply, at, stem, part, name)
    for number, annotation in enumerate(part.get("annotations", ())):
        yield {
            "type": "response.output_text.annotation.added",
            **at,
            "annotation_index": number,
            "annotation": annotation,
        }
    yield {"type": f"response.{family}.done", **at, "part": part}


def _text(reply: Reply, at: Json, stem: str, part: Json, name: str) -> Iterator[Json]:
    """The text of a part in its deltas, and whole."""
    logprobs = part.get("logprobs")
    for number, piece in enumerate(reply.pieces(part[name])):
        extra = {} if logprobs is None else {"logprobs": logprobs[number : number + 1]}
        yield {"type": f"response.{stem}.delta", **extra, **at, "delta": piece}
    told = {} if logprobs is None else {"logprobs": logprobs}
    yield {"type": f"response.{stem}.done", **at, name: part[name], **told}


def _items(reply: Reply, message: Message) -> Iterator[tuple[str, Json]]:
    """The items of the reply as they are when they are done, each with its kind."""
    for number, part in enumerate(message.reasoning_details):
        item: Json = {"type": "reasoning", "id": f"rs_tmp_{number}", "summary": []}
        if part["type"] == "reasoning.summary":
            item["summary"] = [{"type": "summary_text", "text": part["summary"]}]
        elif part["type"] == "reasoning.encrypted":
            item["encrypted_content"] = part["data"]
        else:
            item["content"] = [{"type": "reasoning_text", "text": part["text"]}]
            if "signature" in part:
                item["signature"] = part["signature"]
        yield "reasoning", item
    parts: list[Json] = []
    if message.content or not (message.tool_calls or message.refusal or message.images):
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": message.content}
        part["annotations"] = [
            {"type": it["type"], **it["url_citation"]} for it in message.annotations
        ]
        if message.logprobs:
            part["logprobs"] = [
                {"token": piece, "logprob": -0.25, "bytes": list(piece.encode())}
                for piece in reply.pieces(message.content)
            ]
        parts.append(part)
    if message.refusal is not None:
        parts.append({"type": "refusal", "refusal": message.refusal})
    if parts:
        yield (
            "message",
            {
                "type": "message",
                "content": parts,
                "id": "msg_tmp_0",
                "role": "assistant",
            },
        )
    for call in message.tool_calls:
        yield (
            "function_call",
            {
                "type": "function_call",
                "id": f"fc_{call.id}",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            },
        )
    for number, picture in enumerate(message.images):
        url = picture["image_url"]["url"]
        yield (
            "image_generation_call",
            {
                "type": "image_generation_call",
                "id": f"ig_{number}",
                "result": url.partition(",")[2],
            },
        )
