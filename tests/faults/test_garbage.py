"""Healthy streams do not notice that somebody writes garbage beside them.

Four seconds here; `python -m tests.faults.garbage` takes a minute of it.
"""

from tests.faults.garbage import beside_garbage

STREAMS = 50


async def test_streams_beside_garbage() -> None:
    """1,000 bad inputs a second to each listener cut no stream and delay no event by a second."""
    figures = await beside_garbage(STREAMS, 1000, 3)
    assert sum(figures.sent) > 1000  # a machine with less to spare does not reach the rate
    assert figures.failed < sum(figures.sent) / 100
    assert figures.ended == STREAMS
    assert figures.latest_s < 1
    assert figures.refusals > figures.sent[0] / 2
    assert figures.errors == 0
