"""Judging many replies, in several processes where asked, in the order in which they were read."""

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context

from loopguard.core.detection.detector import Detection
from loopguard.core.events import ArgumentsDelta, Event, ReasoningDelta, TextDelta
from loopguard.scan.judge import Judged, judge
from loopguard.scan.saved import Saved, Unreadable

_BATCH_CHARS = 2**18
"""Some 0.1 s of work, beside which handing it over costs nothing."""

_WAITING_BATCHES = 2
"""For each process: one that it works on and one that is ready."""


def judge_all(
    replies: Iterable[Saved | Unreadable], detection: Detection, jobs: int
) -> Iterator[Judged | Unreadable]:
    """Judge every reply.

    Of the replies no more is held than two batches for each process: one that is longer than a
    batch is judged as it is read, in this process.

    Args:
        replies: as they are read.
        detection: what is armed.
        jobs: processes; 1 is this one.
    """
    if jobs == 1:
        for reply in replies:
            yield _judge(reply, detection)
        return
    waiting: deque[Future[list[Judged | Unreadable]] | list[Judged | Unreadable]] = deque()
    # A fresh process inherits neither threads nor open files.
    context = get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        for batch in _batches(replies):
            if isinstance(batch, Saved):
                waiting.append([_judge(batch, detection)])
            else:
                waiting.append(pool.submit(_judge_batch, batch, detection))
            if len(waiting) > _WAITING_BATCHES * jobs:
                yield from _done(waiting.popleft())
        while waiting:
            yield from _done(waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _done(
    batch: Future[list[Judged | Unreadable]] | list[Judged | Unreadable],
) -> list[Judged | Unreadable]:
    return batch.result() if isinstance(batch, Future) else batch


def _judge(reply: Saved | Unreadable, detection: Detection) -> Judged | Unreadable:
    if isinstance(reply, Unreadable):
        return reply
    try:
        return judge(reply.id, reply.events, detection)
    except Unreadable as unreadable:
        return unreadable


def _judge_batch(
    batch: list[Saved | Unreadable], detection: Detection
) -> list[Judged | Unreadable]:
    return [_judge(reply, detection) for reply in batch]


def _batches(
    replies: Iterable[Saved | Unreadable],
) -> Iterator[list[Saved | Unreadable] | Saved]:
    """Whole replies together, and by itself one that is not read to its end yet."""
    batch: list[Saved | Unreadable] = []
    batch_chars = 0
    for reply in replies:
        if isinstance(reply, Unreadable):
            batch.append(reply)
            continue
        events: list[Event] = []
        begun_chars = 0
        source = iter(reply.events)
        try:
            for event in source:
                events.append(event)
                begun_chars += _chars(event)
                if begun_chars > _BATCH_CHARS:
                    break
        except Unreadable as unreadable:
            batch.append(unreadable)
            continue
        if begun_chars > _BATCH_CHARS:
            yield batch
            yield Saved(reply.id, chain(events, source))
            batch, batch_chars = [], 0
            continue
        batch.append(Saved(reply.id, events))
        batch_chars += begun_chars
        if batch_chars > _BATCH_CHARS:
            yield batch
            batch, batch_chars = [], 0
    yield batch


def _chars(event: Event) -> int:
    match event:
        case TextDelta(text) | ReasoningDelta(text) | ArgumentsDelta(text):
            return len(text)
        case _:
            return 1
