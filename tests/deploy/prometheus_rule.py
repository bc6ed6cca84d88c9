"""Write the rules and alerts of deploy/prometheus as the Prometheus operator takes them.

python -m tests.deploy.prometheus_rule
"""

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
WRITTEN = DEPLOY / "kubernetes" / "base" / "prometheus-rule.yaml"


def resource() -> dict[str, Any]:
    """The resource as it has to be."""
    files = [DEPLOY / "prometheus" / name for name in ("rules.yml", "alerts.yml")]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "loopguard", "labels": {"app.kubernetes.io/name": "loopguard"}},
        "spec": {
            "groups": [
                group
                for file in files
                for group in yaml.safe_load(file.read_text("utf-8"))["groups"]
            ]
        },
    }


class Dumper(yaml.SafeDumper):
    """Expressions of several lines stay readable."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


Dumper.add_representer(str, _text)

if __name__ == "__main__":
    WRITTEN.write_text(
        "# Written by python -m tests.deploy.prometheus_rule from deploy/prometheus.\n"
        + yaml.dump(resource(), Dumper=Dumper, sort_keys=False, width=100),
        "utf-8",
    )
