"""What the upstream counted."""

import pytest

from loopguard.core.dialects.fields import origin_of, usage_of
from loopguard.core.events import GenerationId

COUNTED = {"prompt_tokens": 3, "completion_tokens": 4, "cost": 0.01}
BILL = {"upstream_inference_cost": 0.2}


@pytest.mark.parametrize(
    ("said", "cost_usd"),
    [
        ({"is_byok": True, "cost_details": BILL}, 0.21),
        ({"is_byok": True, "cost_details": {"upstream_inference_cost": None}}, 0.01),
        ({"is_byok": True, "cost_details": None}, 0.01),
        ({"is_byok": True, "cost_details": ["0.2"]}, 0.01),
        ({"is_byok": True}, 0.01),
        ({"is_byok": True, "cost_details": BILL, "cost": None}, None),
        ({"is_byok": False, "cost_details": BILL}, 0.01),
        ({"cost_details": BILL}, 0.01),
    ],
)
def test_the_bill_of_the_callers_own_provider_is_added(
    said: dict[str, object], cost_usd: float | None
) -> None:
    """The provider's bill is part of the cost where it is the caller's own, and only there."""
    usage = usage_of(COUNTED | said, ("prompt_tokens",), "completion_tokens")
    assert usage.cost_usd == pytest.approx(cost_usd)
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 4)


@pytest.mark.parametrize(
    "figure", ["much", [], {}, None, True, float("inf"), float("nan"), 10**400]
)
def test_what_is_no_figure_is_not_known(figure: object) -> None:
    """A figure that is no number is left out, and costs neither the others nor the reply."""
    bill = {"is_byok": True, "cost_details": {"upstream_inference_cost": figure}}
    told = COUNTED | bill
    assert usage_of(told, ("prompt_tokens",), "completion_tokens") == (3, 4, 0.01)
    for name in COUNTED:
        usage = usage_of(told | {name: figure}, ("prompt_tokens",), "completion_tokens")
        unknown = None if name == "cost" else 0
        assert usage == tuple(unknown if each == name else COUNTED[each] for each in COUNTED)


@pytest.mark.parametrize("odd", [7, {"id": "x"}, ["x"], True, None])
def test_a_name_that_is_no_text_is_none(odd: object) -> None:
    """A model or a provider that is no text is not named; text is taken as it stands."""
    named = {"model": "m", "provider": "P"}
    assert origin_of(named, "gen-1") == GenerationId("gen-1", "m", "P")
    assert origin_of(named | {"model": odd}, None) == GenerationId(None, None, "P")
    assert origin_of(named | {"provider": odd}, None) == GenerationId(None, "m", None)


def test_a_figure_may_be_text() -> None:
    """Figures that are written as text are read."""
    told = {name: str(figure) for name, figure in COUNTED.items()}
    assert usage_of(told, ("prompt_tokens",), "completion_tokens") == (3, 4, 0.01)
