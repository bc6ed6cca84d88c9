"""What the upstream counted."""

import pytest

from loopguard.core.dialects.fields import usage_of

COUNTED = {"prompt_tokens": 3, "completion_tokens": 4, "cost": 0.01}
BILL = {"upstream_inference_cost": 0.2}


@pytest.mark.parametrize(
    ("said", "cost_usd"),
    [
        ({"is_byok": True, "cost_details": BILL}, 0.21),
        ({"is_byok": True, "cost_details": {"upstream_inference_cost": None}}, 0.01),
        ({"is_byok": True, "cost_details": None}, 0.01),
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


@pytest.mark.parametrize("details", [["0.2"], {"upstream_inference_cost": "much"}])
def test_a_wrong_bill_is_refused(details: object) -> None:
    """A bill that is no number is refused by a ValueError or a TypeError."""
    with pytest.raises((TypeError, ValueError)):
        usage_of(
            COUNTED | {"is_byok": True, "cost_details": details},
            ("prompt_tokens",),
            "completion_tokens",
        )
