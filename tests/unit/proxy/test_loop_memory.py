"""What has looped lately."""

import pytest

from loopguard.errors import ModelResponseLoop
from loopguard.proxy.loop_memory import _MAX_REQUESTS, LoopMemory, digest


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


ERROR = ModelResponseLoop("model looped every attempt", details={"attempts": 4})


def test_a_request_is_remembered_for_its_time() -> None:
    """A looping request is known until its time is over, and told what is left of it."""
    clock = Clock()
    memory = LoopMemory(30.0, clock)
    memory.remember(b"a", ERROR, 4)
    clock.now += 29
    assert memory.replies(b"a") == 4
    refusal = memory.refusal(b"a")
    assert (refusal.message, refusal.details) == (ERROR.message, ERROR.details)
    assert refusal.retry_after_s == pytest.approx(1.0)
    clock.now += 1
    assert memory.replies(b"a") == 0
    assert len(memory) == 0


def test_other_requests_are_not_known() -> None:
    """Nothing is known of a request that has not looped."""
    memory = LoopMemory(30.0, Clock())
    memory.remember(b"a", ERROR, 4)
    assert memory.replies(b"b") == 0


def test_looping_again_adds_up_and_begins_anew() -> None:
    """Replies that loop within the time add up, and the time begins anew."""
    clock = Clock()
    memory = LoopMemory(30.0, clock)
    memory.remember(b"a", ERROR, 1)
    memory.remember(b"b", ERROR, 1)
    clock.now += 20
    memory.remember(b"a", ERROR, 2)
    clock.now += 20
    assert memory.replies(b"a") == 3
    assert memory.replies(b"b") == 0


def test_no_time_remembers_nothing() -> None:
    """With a time of 0 nothing is remembered."""
    memory = LoopMemory(0.0, Clock())
    memory.remember(b"a", ERROR, 4)
    assert len(memory) == 0


def test_bounded() -> None:
    """The oldest request is forgotten where there would be too many."""
    memory = LoopMemory(30.0, Clock())
    for number in range(_MAX_REQUESTS + 1):
        memory.remember(b"%d" % number, ERROR, 1)
    assert len(memory) == _MAX_REQUESTS
    assert memory.replies(b"0") == 0
    assert memory.replies(b"1") == 1


def test_digest_tells_apart_what_is_not_the_same_request() -> None:
    """Body, dialect and credential make the request, and none can pass for another."""
    names = {
        digest("chat", b"{}", "k"),
        digest("chat", b"{}", "l"),
        digest("chat", b"{ }", "k"),
        digest("responses", b"{}", "k"),
        digest("chat", b"{}", None),
    }
    assert len(names) == 5
    assert digest("chat", b"{}", None) == digest("chat", b"{}", "")


def test_digest_of_a_key_that_is_no_text() -> None:
    """A key with bytes that are no UTF-8, as the HTTP parser hands it over, has a digest."""
    assert digest("chat", b"{}", "k\udcff") != digest("chat", b"{}", "k")
