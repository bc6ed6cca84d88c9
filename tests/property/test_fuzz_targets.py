"""What the fuzzer holds the readers to, over bytes that hypothesis chooses."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, WORDS, seeds

PIECES = st.sampled_from([word.encode("utf-8", "surrogatepass") for word in WORDS])
STREAMS = st.lists(PIECES | st.binary(max_size=8), max_size=30).map(b"".join)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["model", "messages", "input", "prompt", "stream", "stream_options", "session_id", "seed"]
)
BODIES = st.dictionaries(NAMES, VALUES).map(lambda body: json.dumps(body).encode())


@pytest.mark.parametrize("target", ["framing", "reading"])
@given(choosing=st.binary(min_size=2, max_size=2), stream=STREAMS)
@settings(max_examples=150)
def test_any_bytes_are_read_alike(target: str, choosing: bytes, stream: bytes) -> None:
    """Whatever bytes come, in whatever reads, no reader loses a byte or reads by its frame else."""
    TARGETS[target](choosing + stream)


@given(wire=st.integers(0, 3), body=BODIES | STREAMS)
@example(wire=0, body=b'{"prompt": [1e9991, null]}')
@example(wire=1, body=b'{"model":"\\ud83d","seed":111111111111111111111111111111}')
@settings(max_examples=300)
def test_any_body_is_planned_or_refused(wire: int, body: bytes) -> None:
    """A body is refused, or asked for as a stream with all else kept; a plan is its own plan."""
    TARGETS["planning"](bytes([wire, 0]) + body)


@pytest.mark.parametrize("target", TARGETS)
def test_every_seed_holds(target: str) -> None:
    """What the fuzzer begins with breaks nothing."""
    for seed in seeds(target):
        TARGETS[target](seed)
