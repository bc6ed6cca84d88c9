"""The rules of Prometheus say what they mean, and a person who is alarmed finds what to do."""

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from loopguard.errors import LoopguardError
from loopguard.metrics import CommandMetrics, Metrics

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
CASES = Path(__file__).with_name("prometheus_alerts.yml")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="Debian's prometheus is not installed"
)


def rules(name: str) -> list[dict]:
    groups = yaml.safe_load((PROMETHEUS / name).read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def exposed() -> set[str]:
    """The names of all series, those of histograms without what they end with."""
    registry = CollectorRegistry()
    Metrics(registry)
    CommandMetrics(registry)
    suffix = {"counter": "_total", "info": "_info"}
    return {family.name + suffix.get(family.type, "") for family in registry.collect()}


ALERTS = {alert["alert"]: alert for alert in rules("alerts.yml")}


def promtool(*arguments: str | Path) -> None:
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_check():
    """Prometheus takes the configuration and every rule, without a warning."""
    promtool("check", "config", "--lint=all", "--lint-fatal", PROMETHEUS / "prometheus.yml")


@needs_promtool
def test_cases():
    """Each alert fires in the cases that say so, in these words, and in no other."""
    promtool("test", "rules", CASES)


def test_every_alert_has_cases():
    """Every alert has a case in which it fires and one in which it does not."""
    fires = defaultdict(set)
    for case in yaml.safe_load(CASES.read_text("utf-8"))["tests"]:
        for asserted in case.get("alert_rule_test", ()):
            fires[asserted["alertname"]].add(bool(asserted["exp_alerts"]))
    assert fires == {name: {True, False} for name in ALERTS}


@pytest.mark.parametrize("name", ALERTS)
def test_alert_leads_somewhere(name):
    """An alert says how bad it is, what has happened, and where its paragraph is."""
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    document, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == name.lower()
    (_, paragraph) = (ROOT / document).read_text("utf-8").split(f"\n### {name}\n")
    paragraph = paragraph.partition("\n##")[0]
    assert re.findall(r"^\*\*(\w+)", paragraph, re.MULTILINE) == ["Meaning", "Look", "Do"]
    look = paragraph.partition("**Look")[2].partition("**Do")[0]
    assert re.search(r"^    \w", look, re.MULTILINE), "no command says how to look"


def test_what_a_person_looks_for_is_there():
    """Each line of the log and each series that a paragraph searches for is one that is written."""
    alerts = OPERATIONS.partition("## Alerts")[2].partition("## Sizing")[0]
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "loopguard").rglob("*.py"))
    searched = re.findall(r"log \| grep (?:[\w-]+ )*'([^']+)'", alerts.replace("\\|", "|"))
    assert len(searched) > 4
    for sought in searched:
        # As in `a worker (has died|hangs)`.
        begin, *rest = re.split(r"[(|)]", sought)
        for end in rest or [""]:
            assert begin + end in sources or end in sources, sought
    patterns = re.findall(r"admin /metrics \| grep (?:-E )?'?(\^[^'\n]+)", alerts)
    assert len(patterns) > 4
    for pattern in patterns:
        assert any(re.match(pattern.removesuffix("_count"), name) for name in exposed()), pattern


def test_every_refusal_is_explained():
    """Every reason for which a request is refused stands in the table of its alert's paragraph."""
    table = OPERATIONS.split("### LoopguardCallersRefused")[1].split("###")[0]
    told = {
        reason
        for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
        for reason in row.split(", ")
    }
    refusals = {f"`{error.error_type}`" for error in LoopguardError.__subclasses__()}
    of_exchanges = {"`upstream_timeout`", "`model_response_loop`"}
    assert told == refusals - of_exchanges - {"`draining`"} | {"`remembered`"}


def test_every_metric_is_documented():
    """Every series that is exposed is described for operators."""
    documents = [OPERATIONS, (ROOT / "docs" / "ledger.md").read_text("utf-8")]
    described = set()
    for line in "\n".join(documents).splitlines():
        if line.startswith("| `loopguard_"):
            described |= set(re.findall(r"`(loopguard_\w+)", line.split("|")[1]))
    assert described == exposed()
