"""How `loopguard runaway` speaks each wire: the bytes around the text that it writes."""

import json
import time
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from loopguard.core.events import Channel

CHARS_PER_TOKEN = 4
USD_PER_TOKEN = 0.6e-6
"""A rule of thumb and the price of a small model: the figures need only be plausible."""

Json = dict[str, Any]

_TEXT = "@@text@@"
"""Where the text belongs in a payload that is cut in two there."""

_DONE = b"data: [DONE]\n\n"


class Reply(NamedTuple):
    """What is written for one request."""

    generation_id: str
    model: str
    channel: Channel
    text: str

    @property
    def tokens(self) -> int:
        """The tokens that the reply counts for."""
        return len(self.text) // CHARS_PER_TOKEN

    @property
    def arguments(self) -> str:
        """The text as the arguments of a call: JSON of one key."""
        return json.dumps({"text": self.text})


class Frame(NamedTuple):
    """The bytes of a response around its deltas; those after them are made when they are due."""

    content_type: str
    before: bytes
    delta: Callable[[str], bytes]
    after: Callable[[], bytes]


class Wire(NamedTuple):
    """How one API is spoken.

    Attributes:
        cap_keys: where a request asks for a cap on its output.
        streamed: the frame of a stream.
        whole: the frame of a reply in one piece.
    """

    cap_keys: tuple[str, ...]
    streamed: Callable[[Reply], Frame]
    whole: Callable[[Reply], Frame]


def compact(payload: Json) -> str:
    """JSON without spaces, as OpenRouter writes it."""
    return json.dumps(payload, separators=(",", ":"))


def json_text(text: str) -> str:
    """The text as it stands between the quotes of a JSON string."""
    return json.dumps(text)[1:-1]


def _event(payload: Json, *, named: bool = False) -> bytes:
    line = f"event: {payload['type']}\n" if named else ""
    return f"{line}data: {compact(payload)}\n\n".encode()


def _whole(payload: Json, *, in_string: bool = False) -> Frame:
    """A reply in one piece, cut where its text belongs; `in_string`: JSON inside a string."""
    before, _, after = compact(payload).partition(_TEXT)

    def delta(text: str) -> bytes:
        return (json_text(json_text(text)) if in_string else json_text(text)).encode()

    return Frame("application/json", before.encode(), delta, after.encode)


def _usage(reply: Reply, prompt: str, completion: str) -> Json:
    return {
        prompt: 1,
        completion: reply.tokens,
        "total_tokens": 1 + reply.tokens,
        "cost": reply.tokens * USD_PER_TOKEN,
    }


def _chat_head(reply: Reply, kind: str) -> Json:
    return {
        "id": reply.generation_id,
        "object": kind,
        "created": int(time.time()),
        "model": reply.model,
        "provider": "Runaway",
    }


def _chat_delta(channel: Channel, text: str) -> Json:
    match channel:
        case "content":
            return {"content": text}
        case "reasoning":
            return {"content": "", "reasoning": text}
        case "arguments":
            call = {"index": 0, "type": "function", "function": {"arguments": text}}
            return {"content": "", "tool_calls": [call]}


def chat_streamed(reply: Reply) -> Frame:
    """A stream of Chat Completions, in OpenRouter's shapes."""
    arguments = reply.channel == "arguments"
    finish = "tool_calls" if arguments else "stop"
    head = _chat_head(reply, "chat.completion.chunk")

    def chunk(delta: Json, finish: str | None = None, **more: Any) -> bytes:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", **delta},
            "finish_reason": finish,
            "native_finish_reason": finish,
        }
        return _event({**head, "choices": [choice], **more})

    def delta(text: str) -> bytes:
        written = json_text(text) if arguments else text
        return chunk(_chat_delta(reply.channel, written))

    before, closing = b"", b""
    if arguments:
        opening = _chat_delta("arguments", '{"text": "')
        opening["tool_calls"][0] |= {"id": "call_1"}
        opening["tool_calls"][0]["function"] |= {"name": "write_file"}
        before, closing = chunk(opening), chunk(_chat_delta("arguments", '"}'))
    usage = _usage(reply, "prompt_tokens", "completion_tokens")
    after = closing + chunk({"content": ""}, finish) + chunk({"content": ""}, finish, usage=usage)
    return Frame("text/event-stream", before, delta, lambda: after + _DONE)


def chat_whole(reply: Reply) -> Frame:
    """A whole reply of Chat Completions, in OpenRouter's shape."""
    arguments = reply.channel == "arguments"
    message: Json = {"role": "assistant", "content": "", "refusal": None, "reasoning": None}
    if arguments:
        function = {"name": "write_file", "arguments": f'{{"text": "{_TEXT}"}}'}
        message["tool_calls"] = [
            {"id": "call_1", "type": "function", "index": 0, "function": function}
        ]
    else:
        message[reply.channel] = _TEXT
    finish = "tool_calls" if arguments else "stop"
    choice = {
        "index": 0,
        "logprobs": None,
        "finish_reason": finish,
        "native_finish_reason": finish,
        "message": message,
    }
    payload = _chat_head(reply, "chat.completion") | {
        "choices": [choice],
        "usage": _usage(reply, "prompt_tokens", "completion_tokens"),
    }
    return _whole(payload, in_string=arguments)


def completions_streamed(reply: Reply) -> Frame:
    """A stream of legacy Completions; it has no tools, so their loop stands in the text."""
    head = _chat_head(reply, "text_completion")
    name = "reasoning" if reply.channel == "reasoning" else "text"

    def chunk(finish: str | None = None, **said: str) -> bytes:
        choice = {"index": 0, "text": "", **said, "logprobs": None, "finish_reason": finish}
        return _event({**head, "choices": [choice]})

    usage = _usage(reply, "prompt_tokens", "completion_tokens")
    after = chunk("stop") + _event({**head, "choices": [], "usage": usage}) + _DONE
    return Frame("text/event-stream", b"", lambda text: chunk(**{name: text}), lambda: after)


def completions_whole(reply: Reply) -> Frame:
    """A whole reply of legacy Completions."""
    name = "reasoning" if reply.channel == "reasoning" else "text"
    choice = {"index": 0, "text": "", name: _TEXT, "logprobs": None, "finish_reason": "stop"}
    usage = _usage(reply, "prompt_tokens", "completion_tokens")
    return _whole(_chat_head(reply, "text_completion") | {"choices": [choice], "usage": usage})


def _item(reply: Reply, text: str) -> Json:
    """The one item of a response."""
    match reply.channel:
        case "content":
            part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
            return {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
        case "reasoning":
            thought = {"type": "reasoning_text", "text": text}
            return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought]}
        case "arguments":
            call = {"id": "fc_1", "call_id": "call_1", "name": "write_file"}
            return {"type": "function_call", **call, "arguments": text}


def _response(reply: Reply, status: str, output: list[Json]) -> Json:
    return {
        "object": "response",
        "id": reply.generation_id,
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": output,
        "model": reply.model,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def _completed(reply: Reply, text: str) -> Json:
    item = _item(reply, text) | {"status": "completed"}
    usage = _usage(reply, "input_tokens", "output_tokens")
    usage |= {"input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    return _response(reply, "completed", [item]) | {"usage": usage}


def responses_streamed(reply: Reply) -> Frame:
    """A stream of the Responses API, as OpenRouter frames it."""
    arguments = reply.channel == "arguments"
    numbers = count()
    item = _item(reply, reply.arguments if arguments else reply.text)
    at = {"output_index": 0, "item_id": item["id"]}
    stem = "function_call_arguments"
    if not arguments:
        at["content_index"] = 0
        stem = item["content"][0]["type"]

    def event(kind: str, **fields: Any) -> bytes:
        numbered = {"type": f"response.{kind}", **fields, "sequence_number": next(numbers)}
        return _event(numbered)

    def delta(text: str) -> bytes:
        return event(f"{stem}.delta", **at, delta=json_text(text) if arguments else text)

    begun = _response(reply, "in_progress", [])
    added = _item(reply, "") | {"status": "in_progress"}
    added |= {"content": []} if not arguments else {}
    before = event("created", response=begun) + event("in_progress", response=begun)
    before += event("output_item.added", output_index=0, item=added)
    if arguments:
        before += event(f"{stem}.delta", **at, delta='{"text": "')
    else:
        part = item["content"][0]
        before += event("content_part.added", **at, part=part | {"text": ""})

    def after() -> bytes:
        if arguments:
            closing = event(f"{stem}.delta", **at, delta='"}')
            closing += event(f"{stem}.done", **at, arguments=item["arguments"])
        else:
            closing = event(f"{stem}.done", **at, text=part["text"])
            closing += event("content_part.done", **at, part=part)
        done = item | {"status": "completed"}
        closing += event("output_item.done", output_index=0, item=done)
        text = reply.arguments if arguments else reply.text
        return closing + event("completed", response=_completed(reply, text)) + _DONE

    return Frame("text/event-stream", before, delta, after)


def responses_whole(reply: Reply) -> Frame:
    """A whole response."""
    arguments = reply.channel == "arguments"
    text = f'{{"text": "{_TEXT}"}}' if arguments else _TEXT
    return _whole(_completed(reply, text), in_string=arguments)


def _block(reply: Reply, text: str) -> Json:
    """The one block of a message."""
    match reply.channel:
        case "content":
            return {"type": "text", "text": text}
        case "reasoning":
            return {"type": "thinking", "thinking": text, "signature": ""}
        case "arguments":
            call = {"id": "toolu_1", "name": "write_file"}
            return {"type": "tool_use", **call, "input": {"text": text} if text else {}}


def _message(reply: Reply, content: list[Json], stop_reason: str | None, tokens: int) -> Json:
    return {
        "id": f"msg_{reply.generation_id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": tokens},
    }


def messages_streamed(reply: Reply) -> Frame:
    """A stream of Anthropic's Messages."""
    kind, name = {
        "content": ("text_delta", "text"),
        "reasoning": ("thinking_delta", "thinking"),
        "arguments": ("input_json_delta", "partial_json"),
    }[reply.channel]
    arguments = reply.channel == "arguments"

    def event(kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, **fields}, named=True)

    def written(text: str) -> bytes:
        return event("content_block_delta", index=0, delta={"type": kind, name: text})

    def delta(text: str) -> bytes:
        return written(json_text(text) if arguments else text)

    before = event("message_start", message=_message(reply, [], None, 1))
    before += event("content_block_start", index=0, content_block=_block(reply, ""))
    before += event("ping")
    ended = {"stop_reason": "tool_use" if arguments else "end_turn", "stop_sequence": None}
    after = event("content_block_stop", index=0)
    after += event("message_delta", delta=ended, usage={"output_tokens": reply.tokens})
    after += event("message_stop")
    if arguments:
        before, after = before + written('{"text": "'), written('"}') + after
    return Frame("text/event-stream", before, delta, lambda: after)


def messages_whole(reply: Reply) -> Frame:
    """A whole message."""
    stop_reason = "tool_use" if reply.channel == "arguments" else "end_turn"
    return _whole(_message(reply, [_block(reply, _TEXT)], stop_reason, reply.tokens))


WIRES = {
    "/chat/completions": Wire(("max_completion_tokens", "max_tokens"), chat_streamed, chat_whole),
    "/responses": Wire(("max_output_tokens",), responses_streamed, responses_whole),
    "/messages": Wire(("max_tokens",), messages_streamed, messages_whole),
    "/completions": Wire(("max_tokens",), completions_streamed, completions_whole),
}
"""How each path is spoken."""
