"""What a parsed stream is made of, whatever the dialect it came in.

A dialect turns each server-sent event of its wire into a few of these values. They are named
tuples because one is built for every delta of every reply.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

Channel: TypeAlias = Literal["content", "reasoning", "arguments"]
"""Where a model writes: its answer, its thinking, or the arguments of a tool call."""

CHANNELS: tuple[Channel, ...] = ("content", "reasoning", "arguments")


class TextDelta(NamedTuple):
    """A piece of the answer (channel ``content``) of one choice."""

    text: str
    choice: int = 0


class ReasoningDelta(NamedTuple):
    """A piece of the thinking (channel ``reasoning``) of one choice."""

    text: str
    choice: int = 0


class ArgumentsDelta(NamedTuple):
    """A piece of the JSON text of one tool call's arguments (channel ``arguments``)."""

    text: str
    choice: int = 0
    call: int = 0


class CallBegan(NamedTuple):
    """The first piece of one tool call: which tool is called; its arguments may follow."""

    name: str
    choice: int = 0
    call: int = 0


class OtherDelta(NamedTuple):
    """A piece of the reply that is no text: an annotation, an image, a signature."""

    choice: int = 0


class Usage(NamedTuple):
    """What the upstream counted for the reply; ``cost_usd`` is None where it does not say."""

    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


READY_VERDICTS = frozenset({"repetition", "repetition_truncation", "repeat", "repetition_detected"})
"""Finish and stop reasons by which a provider says itself that the model looped."""


class Finish(NamedTuple):
    """The first non-null finish reason of one choice, or the provider's ready verdict."""

    reason: str
    choice: int = 0


class GenerationId(NamedTuple):
    """The upstream's billed unit, told once a stream; model and provider as it names them."""

    id: str | None
    model: str | None
    provider: str | None


class UpstreamFault(NamedTuple):
    """An error that the upstream reports inside a stream whose status was 200.

    ``status`` is the HTTP status that the error would have had, 502 where it does not say.
    ``error`` is the error object as it came.
    """

    status: int
    error: dict[str, Any]


class Done(NamedTuple):
    """The sentinel that ends the stream."""


Event: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | CallBegan
    | OtherDelta
    | Usage
    | Finish
    | GenerationId
    | UpstreamFault
    | Done
)


CARRYING = frozenset({TextDelta, ReasoningDelta, ArgumentsDelta, CallBegan, OtherDelta})
"""The events that carry something of the reply; the others frame it."""


class Parsed(NamedTuple):
    """What one event of the wire says.

    Attributes:
        events: in the order of the line.
        chunk: the parsed JSON object; None for what is no part of the reply (the sentinel, a ping).
        usage_only: whether the line is there only because the usage was asked for.
    """

    events: list[Event]
    chunk: dict[str, Any] | None
    usage_only: bool = False


class Place(NamedTuple):
    """Where the text of an event stands.

    Attributes:
        channel: on which it is written.
        choice: whose it is.
        times: how often the event says it; OpenRouter sends a model's thinking twice.
    """

    channel: Channel
    choice: int
    times: int


class Run(NamedTuple):
    """Events in a row that differ from the one before them in their text alone.

    Attributes:
        raw: their bytes as they came.
        text: what all of them say; at least a character.
        place: where.
    """

    raw: bytes
    text: str
    place: Place


class Seen(NamedTuple):
    """What a caller has seen of a stream that an event of ours is to end.

    Attributes:
        origin: what the stream says of itself.
        created: Unix seconds, for events that carry them.
        last: the last chunk that has reached the caller, None where none has.
        unfinished: the choices whose finish has not, in order.
    """

    origin: GenerationId
    created: int
    last: dict[str, Any] | None
    unfinished: tuple[int, ...] = (0,)
