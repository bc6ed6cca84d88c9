"""A real Prometheus, which scrapes a real loopguard under load, answers every expression."""

import math
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy import dashboard
from tests.deploy.watched import DEPLOY, Watched, watched

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Debian's prometheus is not installed"
)

# An answer takes some scrapes, a stalled reply, and a record that is given up: some seconds.
PATIENCE_S = 120.0


def rules(name: str) -> list[dict[str, str]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / name).read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def without_thresholds(expression: str) -> str:
    """What an alert looks at, whether or not it is alarming; an hour ago is a second ago."""
    bare = re.sub(r"\s(>|>=|<|==)\s[\d.]+(?=\s|$)", "", expression)
    bare = re.sub(r"\s(unless|<)\s", " and ", bare)
    return bare.replace("offset 1h", "offset 1s")


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of the dashboard, the rules and the alerts, with where it stands."""
    for panel in dashboard.panels():
        for target in panel.targets:
            yield f"panel {panel.title} {target['refId']}", dashboard.filled(target["expr"], 60, 15)
    for rule in rules("rules.yml"):
        yield f"rule {rule['record']}", rule["record"]
    for alert in rules("alerts.yml"):
        yield f"alert {alert['alert']}", without_thresholds(alert["expr"])


async def unanswered(prometheus: Watched, asked: dict[str, str]) -> dict[str, str]:
    """Those of the expressions that have no series with a figure now."""
    left = {}
    for place, expression in asked.items():
        series = await prometheus.query(expression)
        if not any(math.isfinite(float(one["value"][1])) for one in series):
            left[place] = expression
    return left


async def test_every_expression_is_answered(tmp_path: Path) -> None:
    """No panel stays empty, no rule records nothing, no alert looks at what is not there."""
    left = dict(expressions())
    assert len(left) > 70
    async with watched(tmp_path) as prometheus:
        ends_at = time.monotonic() + PATIENCE_S
        while left := await unanswered(prometheus, left):
            assert time.monotonic() < ends_at, left

        for name, question in dashboard.variables():
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", question).groups()
            values = await prometheus.get(f"label/{label}/values", **{"match[]": metric})
            assert len(values) > 1, (name, values)

        groups = (await prometheus.get("rules"))["groups"]
        judged = [rule for group in groups for rule in group["rules"]]
        assert len(judged) == len(rules("rules.yml")) + len(rules("alerts.yml"))
        assert [rule["name"] for rule in judged if rule["health"] != "ok"] == []
        firing = {rule["name"] for rule in judged if rule.get("state") == "firing"}
        assert {"LoopguardModelBeganToLoop", "LoopguardLoopsExhausted"} <= firing
