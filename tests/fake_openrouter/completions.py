"""What OpenRouter sends on legacy Completions: a `Reply` as a stream of chunks, and whole.

No stream of this wire was recorded; shapes are OpenAI's, with OpenRouter's own fields.
"""

from collections.abc import Iterator
from itertools import zip_longest

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


def events(reply: Reply) -> Iterator[bytes]:
    """The blocks of the stream's body, comments and sentinel included, in order."""
    yield from [PROCESSING] * reply.comments
    for number, chunk in enumerate(_chunks(reply), start=1):
        yield event(chunk)
        if reply.comment_every and number % reply.comment_every == 0:
            yield PROCESSING
    yield DONE


def stream(reply: Reply) -> bytes:
    """The body of the streamed reply."""
    return b"".join(events(reply))


def whole(reply: Reply) -> Json:
    """The body of the reply to a caller that asked for no stream."""
    choices = [
        _choice(index, message.content, message, reply, last=True, thought=_thinking(message))
        for index, message in enumerate(reply.messages)
    ]
    return _head(reply) | {"choices": choices, "usage": reply.usage_object}


def _head(reply: Reply) -> Json:
    return {
        "id": GENERATION_ID,
        "object": "text_completion",
        "created": CREATED,
        "model": reply.model,
        "provider": reply.provider,
    }


def _choice(
    index: int, text: str, message: Message, reply: Reply, *, last: bool = False, thought: str = ""
) -> Json:
    choice: Json = {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": message.finish_reason if last else None,
        "native_finish_reason": message.finish_reason if last else None,
    }
    if thought:
        choice["reasoning"] = thought
    if message.logprobs and text:
        pieces = reply.pieces(text)
        choice["logprobs"] = {
            "tokens": pieces,
            "token_logprobs": [-0.25] * len(pieces),
            "top_logprobs": [],
        }
    return choice


def _chunks(reply: Reply) -> Iterator[Json]:
    head = _head(reply)
    for turn in zip_longest(*(_deltas(reply, *it) for it in enumerate(reply.messages))):
        for choice in turn:
            if choice is not None:
                yield head | {"choices": [choice]}
    for index, message in enumerate(reply.messages):
        yield head | {"choices": [_choice(index, "", message, reply, last=True)]}
    fault = {} if reply.fault is None else {"error": reply.fault}
    yield head | {"choices": [], "usage": reply.usage_object, **fault}


def _deltas(reply: Reply, index: int, message: Message) -> Iterator[Json]:
    for piece in reply.pieces(_thinking(message)):
        yield _choice(index, "", message, reply, thought=piece)
    for piece in reply.pieces(message.content):
        yield _choice(index, piece, message, reply)


def _thinking(message: Message) -> str:
    parts = message.reasoning_details
    return "".join(part.get("text") or part.get("summary") or "" for part in parts)
