"""A price is read exactly, or not at all."""

from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopguard.billing.entries import Price
from loopguard.billing.prices import LARGEST_USD, looks_unfinished, read_price, token_count, usd
from loopguard.billing.tables import Usd
from tests.fake_openrouter.generations import record


@given(st.decimals(0, 999_999, places=12))
def test_no_amount_is_lost(amount):
    """Any amount of up to 15 digits and 12 decimals survives JSON and the database."""
    if len(amount.as_tuple().digits) > 15:
        amount = Decimal(str(float(amount))).quantize(Decimal("1e-12"))
    read = usd(orjson.loads(str(amount)))
    stored = Usd().process_bind_param(read, None)
    assert isinstance(stored, int)
    assert Usd().process_result_value(stored, None) == amount


@pytest.mark.parametrize(
    "amount",
    [None, True, "0.1", -0.01, float("nan"), float("inf"), LARGEST_USD, 10**400, [], {}],
    ids=repr,
)
def test_no_amount(amount):
    """What cannot be the price of a reply is none."""
    assert usd(amount) is None


def test_whole_number():
    """A price may be a whole number, zero included."""
    assert usd(0) == 0
    assert usd(3) == 3


@pytest.mark.parametrize("count", [None, True, 1.5, "3", -1, 2**60])
def test_no_count(count):
    """What cannot be a number of tokens is none."""
    assert token_count(count) is None


def test_recorded_cancelled_generation():
    """The cancelled record that was seen in the wild has its price and the billed tokens."""
    price = read_price(record("gen-1", streamed=True, cancelled=True))
    assert price == Price(Decimal("0.00003452"), 64, 98, cancelled=True)
    assert not looks_unfinished(price)


def test_own_account():
    """What a provider bills to the caller's own account is added to the price."""
    told = record("gen-1", streamed=True, cancelled=True)
    told |= {"is_byok": True, "total_cost": 0.001, "upstream_inference_cost": 0.02}
    assert read_price(told).cost_usd == Decimal("0.021")


def test_upstream_cost_of_others():
    """The provider's bill is not added where OpenRouter has paid it."""
    told = record("gen-1", streamed=True, cancelled=True) | {"upstream_inference_cost": 0.02}
    assert read_price(told).cost_usd == Decimal("0.00003452")


def test_counts_without_native():
    """Where a record lacks the provider's own count the other one is taken."""
    told = record("gen-1", streamed=True, cancelled=True)
    told |= {"native_tokens_prompt": None, "native_tokens_completion": None, "cancelled": None}
    assert read_price(told) == Price(Decimal("0.00003452"), 65, 116, cancelled=None)


def test_no_cost():
    """A record without a cost is no price."""
    assert read_price({"id": "gen-1"}) is None


@pytest.mark.parametrize(
    ("completion_tokens", "cancelled", "unfinished"),
    [(None, None, True), (0, False, True), (0, True, False), (None, True, False), (5, None, False)],
)
def test_unfinished(completion_tokens, cancelled, unfinished):
    """A record that counts no completion and was not cancelled looks unfinished."""
    assert looks_unfinished(Price(Decimal(0), 1, completion_tokens, cancelled)) is unfinished
