"""The wires that replies come in.

A dialect is a module that has what `Dialect` names, and one entry in `DIALECTS`. The exchange, the
attempt and the relay know no dialect by its name.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from loopguard.core import sse
from loopguard.core.dialects import chat, completions, messages, responses
from loopguard.core.dialects.reader import Parser
from loopguard.core.events import Channel, Parsed, Seen, UpstreamFault
from loopguard.core.plan import Plan
from loopguard.core.retry import Refused
from loopguard.errors import LoopguardError


class HeldReply(Protocol):
    """Keeps one reply until it has completed."""

    @property
    def size_bytes(self) -> int:
        """What is kept, in bytes."""

    def add(self, block: sse.Block, parsed: Parsed) -> None:
        """Keep one event."""

    def extend(self, raw: bytes, text: str, times: int) -> None:
        """Keep a run: events that repeat the frame of the one before them.

        Args:
            raw: the events.
            text: of all of them.
            times: how often each event says its own.
        """

    def stream(self) -> Iterable[bytes]:
        """The reply as a stream of few events, framed, carrying all that was added."""

    def whole(self) -> dict[str, Any]:
        """The reply as the object that the upstream answers without a stream."""


class Dialect(Protocol):
    """One wire: what its module has."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """The dialect's name, as metrics and logs say it."""

    @property
    def CHANNELS(self) -> tuple[Channel, ...]:  # noqa: N802 - a constant of the module
        """Where a model can write on this wire."""

    @property
    def TEXT_FIELDS(self) -> tuple[str, ...]:  # noqa: N802 - a constant of the module
        """Under which names most of a reply's text stands in its events."""

    @property
    def FAULT_IN_WHOLE(self) -> bool:  # noqa: N802 - a constant of the module
        """Whether a whole reply can tell of an error that came after a part of it."""

    def plan(self, body: bytes, /) -> Plan:
        """Turn the caller's request into the upstream's."""

    def Parser(self) -> Parser:  # noqa: N802 - a class of the module
        """Begin to read a stream."""

    def Held(self) -> HeldReply:  # noqa: N802 - a class of the module
        """Begin to keep a reply."""

    def error_body(self, error: LoopguardError, /) -> bytes:
        """The body of an answer that is an error."""

    def fault_body(self, fault: UpstreamFault, /) -> bytes:
        """The body of an answer made of an error inside a stream."""

    def error_event(self, error: LoopguardError, seen: Seen, /) -> bytes:
        """The event that fails a stream."""

    def refusal_event(self, refused: Refused, seen: Seen, /) -> bytes:
        """The event that fails a stream with the upstream's own error."""

    def finish_event(self, seen: Seen, /) -> bytes:
        """The events that end a stream as if the reply had reached its output cap."""


DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": chat,
    "/responses": responses,
    "/messages": messages,
    "/completions": completions,
}
"""The guarded paths, below the prefix, and the dialect that each speaks."""
