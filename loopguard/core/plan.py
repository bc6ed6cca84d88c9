"""The caller's body becomes the upstream's: asked for as a stream, with its usage.

Nothing else is changed, and a body that already asks for both is sent on byte for byte. So the
upstream's own answer to a bad request is the answer that the caller gets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loopguard.core import json_text
from loopguard.core.request_gate import excerpt
from loopguard.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent upstream for one request, and how its caller wants the reply.

    Attributes:
        body: the upstream's request body, JSON in UTF-8.
        stream: whether the caller asked for a stream.
        usage_asked: whether the caller's stream is to carry the usage in a chunk of its own.
        model: as the caller names it, None where it names none.
        session: the ``session_id`` that the caller groups requests by, None where it names none.
        asked: what the user said last, the ends of a long text alone (`request_gate.excerpt`).
    """

    body: bytes
    stream: bool
    usage_asked: bool
    model: str | None
    session: str | None = None
    asked: str = ""

    def canonical(self) -> bytes:
        """The request in one spelling, however it was written and however its reply is to come.

        Two requests for the same reply, one streamed and one whole, have the same canonical form.
        """
        request = read_object(self.body)
        request.pop("stream", None)
        request.pop("stream_options", None)
        return json_text.dumps(request, sort_keys=True)


def plan_of(
    request: dict[str, Any], body: bytes, *, stream: bool, usage_asked: bool, asked: str
) -> Plan:
    """Make a plan; what every dialect's request has in the same place is read here.

    Args:
        request: the caller's, parsed.
        body: the upstream's.
        stream: whether the caller asked for a stream.
        usage_asked: whether its stream is to carry the usage; on some wires each does.
        asked: what the user said last.
    """
    return Plan(body, stream, usage_asked, model_of(request), session_of(request), asked)


def plan_stream(body: bytes, asked: Callable[[dict[str, Any]], str]) -> Plan:
    """Plan for a wire whose every stream tells its usage: only the stream is asked for.

    Args:
        body: the caller's.
        asked: finds in the parsed request what the user said last.

    Raises:
        InvalidRequest: the body is no JSON object, or ``stream`` is no boolean.
    """
    request = read_object(body)
    stream = asked_stream(request)
    if not stream:
        request["stream"] = True
        body = json_text.dumps(request)
    return plan_of(request, body, stream=stream, usage_asked=True, asked=asked(request))


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a request body.

    Raises:
        InvalidRequest: the body is not one JSON object.
    """
    try:
        request = json_text.loads(body, to_write=True)
    except ValueError:
        raise InvalidRequest("the request body is not JSON, or has a number too large") from None
    if not isinstance(request, dict):
        raise InvalidRequest("the request body is not a JSON object")
    return request


def asked_stream(request: dict[str, Any]) -> bool:
    """Whether the caller wants a stream.

    Raises:
        InvalidRequest: ``stream`` is neither a boolean nor null.
    """
    stream = request.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("`stream` is not a boolean")
    return bool(stream)


def model_of(request: dict[str, Any]) -> str | None:
    """The model that the request names."""
    model = request.get("model")
    return model if isinstance(model, str) else None


def session_of(request: dict[str, Any]) -> str | None:
    """The session that the request belongs to, as OpenRouter has it."""
    session = request.get("session_id")
    return session if isinstance(session, str) and session else None


def asked_in(messages: object) -> str:
    """What the user said last: agents append tool results behind it, not requests."""
    for message in reversed(messages) if isinstance(messages, list) else ():
        if (
            isinstance(message, dict)
            and message.get("role") == "user"
            and (text := text_of(message.get("content")))
        ):
            return text
    return ""


def text_of(content: object) -> str:
    """The text of a message, which is a string or a list of parts; its ends where it is long."""
    parts = [content] if isinstance(content, str) else content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return excerpt("\n".join(text for text in texts if isinstance(text, str)))
