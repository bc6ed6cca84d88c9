"""The log: its lines, and what cannot get into them."""

import asyncio
import io
import json
import logging
from datetime import datetime, timedelta

import pytest

from loopguard.log import MAX_TEXT_CHARS, configure, fields

HOSTILE = 'x\n{"level": "info", "message": "forged"}\r\n\x1b[2J\u2028\x85\u202e\udcff\0'


@pytest.fixture(autouse=True)
def _restored():
    """The logging of the test run is as it was afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def stream():
    return io.StringIO()


def test_json_line(stream):
    """A record is one JSON object with its time, level, logger, message and fields."""
    configure("info", "json", stream)

    logging.getLogger("loopguard.proxy").warning(
        "discarded %d replies", 2, extra=fields(profile="default", wait_s=0.5, cost=None, hold=True)
    )

    line = json.loads(stream.getvalue())
    assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
    assert line == {
        "level": "warning",
        "logger": "loopguard.proxy",
        "message": "discarded 2 replies",
        "profile": "default",
        "wait_s": 0.5,
        "cost": None,
        "hold": True,
    }


def test_text_line(stream):
    """A record is one line that a person can read, its own language kept."""
    configure("info", "text", stream)

    logging.getLogger("loopguard.app").info(
        "loop detection: armed — a reply", extra=fields(profile="größer", attempts=2)
    )

    time, rest = stream.getvalue().split(" ", 1)
    datetime.fromisoformat(time)
    assert rest == (
        'info loopguard.app: loop detection: armed — a reply profile="größer" attempts=2\n'
    )


def test_level(stream):
    """What is below the level is not written."""
    configure("warning", "json", stream)

    logging.getLogger("loopguard").info("no")
    logging.getLogger("loopguard").warning("yes")

    assert json.loads(stream.getvalue())["message"] == "yes"


def test_configured_twice(stream):
    """Configuring again replaces what was configured: each record is written once."""
    configure("info", "json", io.StringIO())
    configure("info", "json", stream)

    logging.getLogger("loopguard").info("once")

    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("place", ["message", "field"])
def test_no_forging(stream, form, place):
    """Text of a model or a caller stays inside the line that it was put into."""
    configure("info", form, stream)

    if place == "message":
        logging.getLogger("loopguard").info("%s", HOSTILE)
    else:
        logging.getLogger("loopguard").info("said", extra=fields(model=HOSTILE))

    written = stream.getvalue()
    assert len(written.splitlines()) == 1
    assert written.removesuffix("\n").isprintable()
    if form == "json":
        assert json.loads(written)["message" if place == "message" else "model"] == HOSTILE


def test_fields_do_not_stand_over_the_record(stream):
    """A field named as one of the record's own keys does not replace it."""
    configure("info", "json", stream)

    logging.getLogger("loopguard").info("true", extra={"fields": {"message": "false", "level": 1}})

    line = json.loads(stream.getvalue())
    assert (line["message"], line["level"]) == ("true", "info")


def test_bounded(stream):
    """A text of any length is cut, in a message and in a field."""
    configure("info", "json", stream)

    attempts = [{"model": "n" * 10**6, "words": 1}]
    told = {"model": "n" * 10**6, "attempt": attempts}
    logging.getLogger("loopguard").info("m" * 10**6, extra={"fields": told})

    line = json.loads(stream.getvalue())
    assert line["message"] == "m" * MAX_TEXT_CHARS + "..."
    assert line["model"] == "n" * MAX_TEXT_CHARS + "..."
    assert line["attempt"] == [{"model": line["model"], "words": 1}]


@pytest.mark.parametrize("form", ["json", "text"])
def test_exceptions(stream, form):
    """An exception is told by its class and its place, never by what it says."""
    configure("info", form, stream)

    try:
        int("sk-planted")
    except ValueError:
        logging.getLogger("loopguard").exception("failed")

    written = stream.getvalue()
    assert "ValueError" in written
    assert f"{__file__}:" in written
    assert "test_exceptions" in written
    assert "planted" not in written


def test_foreign_records(stream):
    """Of a library's record the template is written and neither its arguments nor what follows."""
    configure("debug", "json", stream)

    logging.getLogger("aiohttp.server").error("bad header %r", b"Authorization: Bearer planted")
    logging.getLogger("asyncio").error("never retrieved\nfuture: ValueError('planted')")
    logging.getLogger("loopguardian").error("not ours: %s", "planted")

    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == ["bad header %r", "never retrieved", "not ours: %s"]


async def test_lost_exceptions(stream):
    """An exception that no task was awaited for is told without what it says."""
    configure("debug", "json", stream)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def fail() -> None:
        raise ValueError("planted")

    def tell(loop, context):
        loop.default_exception_handler(context)
        told.set()

    loop.set_exception_handler(tell)
    task = loop.create_task(fail())
    await asyncio.wait([task])
    del task
    await told.wait()

    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["message"], line["error"]) == ("Task exception was never retrieved", "ValueError")
    assert "planted" not in stream.getvalue()
