"""What may not happen, whatever the bytes: each target takes some and raises where it happened.

The first bytes of an input choose the wire and where the stream is cut into reads; the rest is the
stream, or the body. The seeds are every reply that the fake can give, on every wire, and requests.
"""

import json
import random
from collections.abc import Callable, Iterator

from loopguard.core import sse
from loopguard.core.dialects import DIALECTS, Dialect
from loopguard.errors import InvalidRequest
from tests.property.test_reader import assert_alike
from tests.samples import cut
from tests.unit.core.dialects.wires import SAMPLES

_CHOOSING_BYTES = 2
_BOUND_BYTES = 1 << 20
_WIRES = list(DIALECTS.values())


def _chosen(data: bytes) -> tuple[Dialect, list[int], bytes]:
    """The wire, the places to cut at, and the rest of the input."""
    choosing, rest = data[:_CHOOSING_BYTES].ljust(_CHOOSING_BYTES, b"\0"), data[_CHOOSING_BYTES:]
    chance = random.Random(choosing[1])
    places = [chance.randrange(1 << 14) for _ in range(choosing[1] % 16)]
    return _WIRES[choosing[0] % len(_WIRES)], places, rest


def framing(data: bytes) -> None:
    """The decoder loses no byte, and cuts any split of a stream into the same blocks."""
    _, places, stream = _chosen(data)

    def decoded(pieces: list[bytes]) -> tuple[list[sse.Block], bytes]:
        decoder = sse.Decoder(_BOUND_BYTES)
        return [block for piece in pieces for block in decoder.feed(piece)], decoder.rest

    whole = blocks, rest = decoded([stream])
    assert b"".join(block.raw for block in blocks) + rest == stream
    assert decoded(cut(stream, places)) == whole
    assert decoded([stream[at : at + 1] for at in range(len(stream))]) == whole


def reading(data: bytes) -> None:
    """What is read by its frame, of any reads, is what the parser reads of each event."""
    dialect, places, stream = _chosen(data)
    assert_alike(dialect, stream, cut(stream, places))


def _read(body: bytes) -> dict[str, object]:
    """A body as an upstream reads it, whose integers beyond 64 bits are floats as everywhere."""

    def integer(text: str) -> float:
        return int(text) if -(2**63) <= int(text) < 2**64 else float(text)

    read = json.loads(body.decode("utf-8", "surrogatepass"), parse_int=integer)
    assert isinstance(read, dict)
    return read


def planning(data: bytes) -> None:
    """A body is refused, or asked for as a stream with all else kept; a plan is its own plan."""
    dialect, _, body = _chosen(data)
    try:
        plan = dialect.plan(body)
    except InvalidRequest:
        return
    caller, upstream = _read(body), _read(plan.body)
    assert upstream["stream"] is True
    asked_for = {"stream", "stream_options"}
    kept = {key: value for key, value in upstream.items() if key not in asked_for}
    # By their texts, since what is no number is not equal to itself.
    assert json.dumps(kept) == json.dumps(
        {key: value for key, value in caller.items() if key not in asked_for}
    )
    again = dialect.plan(plan.body)
    assert (again.body, again.model, again.asked) == (plan.body, plan.model, plan.asked)
    assert again.canonical() == plan.canonical()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (framing, reading, planning)
}

_BODIES = (
    {"model": "m/x", "messages": [{"role": "user", "content": "hello"}], "stream": False},
    {"model": "m", "input": [{"role": "user", "content": [{"text": "50 times"}]}], "seed": 7},
    {"prompt": ["a", 1, None], "stream": True, "stream_options": {"include_usage": True}},
    {"system": "s", "max_tokens": 1e3, "session_id": "s", "stream_options": None},
)


def seeds(target: str) -> Iterator[bytes]:
    """Inputs to begin with."""
    for wire, dialect in enumerate(_WIRES):
        if target == "planning":
            for body in _BODIES:
                yield bytes([wire, 0]) + json.dumps(body).encode()
            continue
        for sample in SAMPLES.values():
            if sample.dialect is dialect:
                for cuts in (0, 3):
                    yield bytes([wire, cuts]) + sample.stream


WORDS = (
    *("data: ", "data:", "event: ", "id: ", ": ", "\n\n", "\r\n\r\n", "\r", "[DONE]", "\ufeff"),
    *('"content":"', '"text":"', '"delta":', '"choices":[{', '"index":0', '"finish_reason":'),
    *('"type":"response.output_text.delta"', '"type":"content_block_delta"', '"error":{', '"},"'),
    *('\\"', "\\ud83d", "\\u0000", '"usage":{', "null", "1e999", "[[[[", "}]}", '"stream":true'),
    *('"stream_options":{"include_usage":true}', '"messages":[', '"role":"user"', "50 times"),
)
"""What makes a difference; no chance finds it in good time."""
