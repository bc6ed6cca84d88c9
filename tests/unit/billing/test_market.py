"""What a model's output is sold for is read from the upstream's list, and asked for rarely."""

from decimal import Decimal

import aiohttp
import pytest

from loopguard.billing import market
from loopguard.billing.market import REFRESH_S, Market, Terms, read_terms
from tests.fake_openrouter import FakeOpenRouter
from tests.fake_openrouter.server import MODEL
from tests.unit.billing.conftest import Clock

TERMS = Terms(16_384, Decimal("0.0000006"))


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as opened:
        yield opened


def test_saved():
    """A cut saves what the tokens up to the cap would have cost, and nothing beyond the cap."""
    assert TERMS.saved_usd(6_384) == Decimal("0.006")
    assert TERMS.saved_usd(16_384) == 0
    assert TERMS.saved_usd(20_000) == 0


@pytest.mark.parametrize(
    "listed",
    [
        {"top_provider": None},
        {"top_provider": {"max_completion_tokens": None}},
        {"top_provider": {"max_completion_tokens": 0}},
        {"top_provider": {"max_completion_tokens": "many"}},
        {"pricing": None},
        {"pricing": {}},
        {"pricing": {"completion": "-1"}},
        {"pricing": {"completion": "NaN"}},
        {"pricing": {"completion": "dear"}},
        {"pricing": {"completion": ["0.1"]}},
        {"pricing": {"completion": "1e9"}},
        {"id": None},
        {"id": ["m/x"]},
    ],
)
def test_unsaid(listed):
    """An entry without a cap or a price that can be believed is left out, and no other with it."""
    assert read_terms({"data": [MODEL | listed, MODEL]}) == {MODEL["id"]: TERMS}
    assert read_terms({"data": [MODEL | listed]}) == {}


@pytest.mark.parametrize("answer", [None, [], {}, {"data": {}}, {"data": [1, None]}])
def test_no_list(answer):
    """What is no list of models tells nothing."""
    assert read_terms(answer) == {}


async def test_asked_once_an_hour(session):
    """The list is asked for without a key, at the first question and then once an hour."""
    clock = Clock(0.0)
    async with FakeOpenRouter() as fake:
        terms = Market(session, fake.base_url, 5.0, clock).terms
        assert await terms(MODEL["id"]) == TERMS
        assert await terms("made/up") is None
        clock.now_s = REFRESH_S - 1
        fake.models[0]["pricing"] = {"completion": "0.5"}
        assert await terms(MODEL["id"]) == TERMS
        clock.now_s = REFRESH_S
        assert await terms(MODEL["id"]) == Terms(16_384, Decimal("0.5"))
    assert [request.path for request in fake.requests] == ["/models", "/models"]
    assert {request.key for request in fake.requests} == {None}


async def test_upstream_without_a_list(session, monkeypatch):
    """Without a list that can be had or read, what was known stands."""
    clock = Clock(0.0)
    async with FakeOpenRouter() as fake:
        terms = Market(session, fake.base_url, 5.0, clock).terms
        elsewhere = Market(session, fake.base_url + "/nowhere", 5.0, clock).terms
        assert await elsewhere(MODEL["id"]) is None
        assert await terms(MODEL["id"]) == TERMS
        clock.now_s = REFRESH_S
        monkeypatch.setattr(market, "LONGEST_LIST_BYTES", 10)
        assert await terms(MODEL["id"]) == TERMS
        assert len(fake.requests) == 3
    clock.now_s = 2 * REFRESH_S
    assert await terms(MODEL["id"]) == TERMS
