"""The look-up reads what the generation endpoint answers, and never more than that."""

from dataclasses import dataclass

import aiohttp
import pytest

from loopguard.billing.look_up import LONGEST_RECORD_BYTES, NO_ANSWER, Answer, look_up_at
from tests.fake_openrouter import FakeOpenRouter, Refusal, Step, head, reset, stall
from tests.fake_openrouter.generations import record

ID = "gen-1"
KEY = "sk-or-v1-caller"


@dataclass(frozen=True)
class Played:
    """An answer to a look-up in its own steps."""

    played: tuple[Step, ...]

    def steps(self):
        return self.played


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as opened:
        yield opened


def served(*lookups):
    fake = FakeOpenRouter(lookups=lookups)
    fake.generations[ID] = record(ID, streamed=True, cancelled=True)
    fake._keys[ID] = KEY
    return fake


async def test_record(session):
    """A record is asked for by its id with the key that made it, and returned."""
    async with served() as fake:
        answer = await look_up_at(session, fake.base_url, 5.0)(ID, KEY)
    assert answer == Answer(200, None, record(ID, streamed=True, cancelled=True))
    (asked,) = fake.lookups
    assert (asked.query, asked.key) == ({"id": ID}, KEY)


async def test_other_key(session):
    """With another key there is no record."""
    async with served() as fake:
        assert await look_up_at(session, fake.base_url, 5.0)(ID, "sk-other") == Answer(404)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (401, "key_refused"),
        (402, "key_refused"),
        (403, "key_refused"),
        (404, "not_found"),
        (429, "rate_limited"),
        (500, "failed"),
        (529, "failed"),
    ],
)
async def test_refusals(session, status, outcome):
    """A refusal is told by its status, and counted under one word."""
    async with served(status) as fake:
        answer = await look_up_at(session, fake.base_url, 5.0)(ID, KEY)
    assert (answer.status, answer.outcome) == (status, outcome)
    assert answer.refuses_key is (outcome == "key_refused")


@pytest.mark.parametrize(
    ("status", "header", "pause_s"),
    [
        (429, "7", 7.0),
        (503, "7", 7.0),
        (404, "7", 0.0),
        (429, "Wed, 21 Oct 2026 07:28:00 GMT", 0.0),
        (429, "-1", 0.0),
        (429, "9" * 400, 0.0),
    ],
)
async def test_retry_after(session, status, header, pause_s):
    """An upstream that is busy or failing is left alone for as long as it asks."""
    async with served(Refusal(status, headers={"Retry-After": header})) as fake:
        answer = await look_up_at(session, fake.base_url, 5.0)(ID, KEY)
    assert answer.pause_s == pause_s


async def test_nobody_there(session):
    """An upstream that cannot be reached is no answer."""
    async with served() as fake:
        url = fake.base_url
    assert await look_up_at(session, url, 5.0)(ID, KEY) == NO_ANSWER
    assert NO_ANSWER.outcome == "no_answer"


@pytest.mark.parametrize(
    "steps", [(stall,), (head(), stall), (reset,), (head(), b'{"data": {"id"', reset)]
)
async def test_no_whole_answer(session, steps):
    """An upstream that hangs or breaks off is no answer, in the time that a look-up may take."""
    async with served(*[Played(steps)] * 3) as fake:  # aiohttp asks again after a reset
        assert await look_up_at(session, fake.base_url, 0.1)(ID, KEY) == NO_ANSWER


@pytest.mark.parametrize(
    "body",
    [
        b"<html>maintenance</html>",
        b'{"data": []}',
        b'["data"]',
        b'{"data": {"id": "gen-1"}, "' + b"x" * LONGEST_RECORD_BYTES + b'": 1}',
    ],
    ids=["HTML", "no object", "no envelope", "too long"],
)
async def test_unreadable(session, body):
    """A body that is no record, or longer than any, is no record."""
    async with served(Played((head(), body))) as fake:
        answer = await look_up_at(session, fake.base_url, 5.0)(ID, KEY)
    assert (answer.status, answer.record, answer.outcome) == (200, None, "unreadable")


async def test_keeps_the_key_to_itself(session):
    """A redirect is not followed: it would carry the key elsewhere."""
    async with served() as elsewhere, served() as fake:
        target = f"{elsewhere.base_url}/generation?id={ID}"
        fake._lookups = [Refusal(302, headers={"Location": target})]
        answer = await look_up_at(session, fake.base_url, 5.0)(ID, KEY)
    assert answer.outcome == "failed"
    assert elsewhere.requests == []


async def test_key_that_no_header_can_hold(session):
    """A key that cannot stand in a header is no answer rather than a failure."""
    async with served() as fake:
        assert await look_up_at(session, fake.base_url, 5.0)(ID, "sk-\r\nx: y") == NO_ANSWER
    assert fake.requests == []
