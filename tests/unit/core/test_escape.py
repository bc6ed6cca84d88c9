"""What a retry after a trip may change."""

import json
from typing import Any

import pytest

from loopguard.core.escape import Escape, provider_slug

BODY = b'{"model":"m","seed":7,"temperature":0,"stream":true}'
EVERY = Escape(
    steps=(
        "ignore_provider",
        "raise_temperature",
        "drop_seed",
        "repetition_penalty",
        "fallback_model",
    ),
    temperature=0.8,
    repetition_penalty=1.1,
    fallback_model="other/model",
)


def changed(trips: int, body: bytes = BODY, **more: Any) -> dict[str, Any]:
    asked = EVERY.body(body, trips, ["Google AI Studio"], **more)
    before = json.loads(body)
    return {key: value for key, value in json.loads(asked).items() if before.get(key) != value}


def test_nothing_is_changed_unless_written() -> None:
    """Without steps, and before a trip, the request is sent again byte for byte."""
    assert Escape().body(BODY, 3, ["OpenAI"]) is BODY
    assert EVERY.body(BODY, 0, []) is BODY


def test_one_step_a_trip() -> None:
    """Each trip adds the next step of the list, and those before it stay."""
    ignored = {"provider": {"ignore": ["google-ai-studio"]}}
    assert changed(1) == ignored
    assert changed(2) == ignored | {"temperature": 0.8}
    assert "seed" not in json.loads(EVERY.body(BODY, 3, ["x"]))
    assert changed(4) == ignored | {"temperature": 0.8, "repetition_penalty": 1.1}
    assert changed(9)["model"] == "other/model"


def test_step_that_is_left_out() -> None:
    """A step that has turned out to be useless is left out, and the others stay."""
    assert changed(2, without=["ignore_provider"]) == {"temperature": 0.8}


def test_callers_own_routing_is_kept() -> None:
    """Providers that the caller ignores or orders stay as they are."""
    body = b'{"provider":{"ignore":["openai","google-ai-studio"],"order":["a"]}}'
    routing = json.loads(EVERY.body(body, 1, ["OpenAI", "Google AI Studio", "Mancer 2"]))
    assert routing["provider"] == {
        "ignore": ["openai", "google-ai-studio", "mancer-2"],
        "order": ["a"],
    }


def test_unknown_provider_changes_nothing() -> None:
    """Where the stream named no provider there is none to ignore."""
    assert json.loads(EVERY.body(BODY, 1, [])) == json.loads(BODY)


def test_higher_temperature_stays() -> None:
    """A temperature above the operator's is left alone."""
    assert changed(2, b'{"temperature":1.5}').keys() == {"provider"}
    assert changed(2, b'{"temperature":null}')["temperature"] == 0.8


@pytest.mark.parametrize(
    ("name", "slug"),
    [("Google AI Studio", "google-ai-studio"), ("Z.AI", "z-ai"), ("OpenAI", "openai")],
)
def test_slug(name: str, slug: str) -> None:
    """A provider's slug is its name in lower case, its words joined by hyphens."""
    assert provider_slug(name) == slug
