"""The manifests are valid, complete, and say what the program and the image say.

They are assembled here as kustomize would, but for the digest in the name of the ConfigMap; where
kubectl is installed its own assembly is judged too.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from loopguard.metrics import Metrics
from loopguard.settings import Settings, load
from tests.deploy import prometheus_rule
from tests.deploy.test_container import environment, last

ROOT = Path(__file__).parents[2]
FOLDERS = {name: ROOT / "deploy" / "kubernetes" / name for name in ("base", "sidecar")}

# The last words of exchanges that are ended, of connections that are closed, and the ledger's rows.
AFTER_THE_DRAIN_S = 10

SECRETS = {
    "api-key": "sk-or-operator\n",
    "client-tokens": "first\nsecond\n",
    "ledger-url": "postgresql://user:password@host/name\n",
}


def assembled(folder: Path) -> Iterator[dict[str, Any]]:
    """The resources that the folder's kustomization names, and those that it makes."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    for name in kustomization["resources"]:
        yield from yaml.safe_load_all((folder / name).read_text("utf-8"))
    for made in kustomization.get("configMapGenerator", ()):
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": made["name"]},
            "data": {name: (folder / name).read_text("utf-8") for name in made["files"]},
        }


RESOURCES = [(name, resource) for name, folder in FOLDERS.items() for resource in assembled(folder)]
BASE = {
    (resource["kind"], resource["metadata"]["name"]): resource
    for name, resource in RESOURCES
    if name == "base"
}


def named(case: tuple[str, dict[str, Any]]) -> str:
    name, resource = case
    return f"{name}-{resource['kind']}-{resource['metadata']['name']}"


DEPLOYMENT = BASE["Deployment", "loopguard"]["spec"]
POD = DEPLOYMENT["template"]["spec"]
(CONTAINER,) = POD["containers"]
(SIDECAR,) = next(
    resource["spec"]["template"]["spec"]["initContainers"]
    for name, resource in RESOURCES
    if (name, resource["kind"]) == ("sidecar", "Deployment")
)
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}


def judge(resource: dict[str, Any]) -> None:
    """Hold a resource of Kubernetes' own to its newest schema."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(resource, version, strict=True)


OTHERS = "monitoring.coreos.com/"


@pytest.mark.parametrize(
    "case", [case for case in RESOURCES if OTHERS not in case[1]["apiVersion"]], ids=named
)
def test_valid(case: tuple[str, dict[str, Any]]) -> None:
    """Each resource is of the schema of its kind, without an unknown key."""
    judge(case[1])


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PrometheusRule"])
def test_operators_own(kind: str) -> None:
    """What the Prometheus operator reads is of its schema, without an unknown key.

    For whoever installs `cloudcoil-models-prometheus-operator`, 47,000 lines of models.
    """
    models = pytest.importorskip("cloudcoil.models.prometheus_operator.v1")
    resource = BASE[kind, "loopguard"]
    read = getattr(models, kind).model_validate(resource)
    # An unknown key would be missing here.
    assert read.model_dump(by_alias=True, exclude_unset=True, mode="json") == resource


@pytest.mark.parametrize("name", FOLDERS)
def test_kustomize(name: str) -> None:
    """kubectl assembles the same resources, and they are valid."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    ran = subprocess.run(
        ["kubectl", "kustomize", FOLDERS[name]], capture_output=True, text=True, check=True
    )
    made = list(yaml.safe_load_all(ran.stdout))
    kinds = sorted(resource["kind"] for where, resource in RESOURCES if where == name)
    assert sorted(resource["kind"] for resource in made) == kinds
    for resource in made:
        if OTHERS not in resource["apiVersion"]:
            judge(resource)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_file_is_named(name: str) -> None:
    """Every file of a folder is named by its kustomization, and every file named is there."""
    kustomization = yaml.safe_load((FOLDERS[name] / "kustomization.yaml").read_text("utf-8"))
    files = set(kustomization["resources"])
    for made in kustomization.get("configMapGenerator", ()):
        files |= set(made["files"])
    there = {path.name for path in FOLDERS[name].iterdir()} - {"kustomization.yaml"}
    assert files == there


def settings(container: dict[str, Any], folder: Path) -> Settings:
    """What the program makes of a container's variables, arguments and files."""
    environ = {"LOOPGUARD_SERVER__HOST": environment()["LOOPGUARD_SERVER__HOST"]}
    for variable in container["env"]:
        text = variable["value"]
        if variable["name"].endswith("_FILE"):
            secret = Path(text)
            (mount,) = [
                mount["mountPath"]
                for mount in container["volumeMounts"]
                if secret.is_relative_to(mount["mountPath"])
            ]
            assert mount == "/run/secrets/loopguard"
            path = folder / secret.name
            path.write_text(SECRETS[secret.name])
            text = str(path)
        environ[variable["name"]] = text
    words = container.get("args", ["serve"])
    configured = None
    if words != ["serve"]:
        assert words == ["serve", "--config", "/etc/loopguard/loopguard.toml"]
        configured = FOLDERS["base"] / "loopguard.toml"
    return load(configured, environ)


def test_base_is_accepted(tmp_path: Path) -> None:
    """The replicas' configuration is accepted, with its secrets from files, on the pod's ports."""
    ours = settings(CONTAINER, tmp_path)
    assert ours.server.port == PORTS["api"]
    assert ours.server.admin_port == PORTS["admin"]
    assert ours.server.admin_host == "0.0.0.0"
    assert ours.upstream.api_key is not None
    assert ours.upstream.api_key.get_secret_value() == "sk-or-operator"
    assert [token.get_secret_value() for token in ours.server.client_tokens] == ["first", "second"]
    assert ours.ledger.url is not None
    assert ours.ledger.url.get_secret_value() == "postgresql://user:password@host/name"


def test_profile_is_the_shipped_one(tmp_path: Path) -> None:
    """The replicas' profile is the shipped default one."""
    assert settings(CONTAINER, tmp_path).profiles["default"] == load(None, {}).profiles["default"]


def test_sidecar_is_accepted(tmp_path: Path) -> None:
    """The sidecar serves its pod alone, on the port that the agent is told."""
    ours = settings(SIDECAR, tmp_path)
    assert (ours.server.host, ours.server.admin_host) == ("127.0.0.1", "127.0.0.1")
    agent = next(
        resource["spec"]["template"]["spec"]["containers"][0]
        for name, resource in RESOURCES
        if (name, resource["kind"]) == ("sidecar", "Deployment")
    )
    told = {variable["name"]: variable.get("value") for variable in agent["env"]}
    assert told["OPENAI_BASE_URL"] == f"http://127.0.0.1:{ours.server.port}/v1"


def test_grace(tmp_path: Path) -> None:
    """A pod is given the time that its drain takes, and what comes after."""
    server = settings(CONTAINER, tmp_path).server
    grace_s = POD["terminationGracePeriodSeconds"]
    assert grace_s >= server.drain_delay_s + server.drain_s + AFTER_THE_DRAIN_S
    server = settings(SIDECAR, tmp_path).server
    (pod,) = [
        resource["spec"]["template"]["spec"]
        for name, resource in RESOURCES
        if (name, resource["kind"]) == ("sidecar", "Deployment")
    ]
    assert pod["terminationGracePeriodSeconds"] >= server.drain_s + AFTER_THE_DRAIN_S


def test_readiness_is_seen_in_time(tmp_path: Path) -> None:
    """A drain is seen by the probe, and has time to spread, before anything is refused."""
    probe = CONTAINER["readinessProbe"]
    seen_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert settings(CONTAINER, tmp_path).server.drain_delay_s >= seen_s + 3
    assert probe["httpGet"] == {"path": "/readyz", "port": "admin"}
    for kind in ("startupProbe", "livenessProbe"):
        assert CONTAINER[kind]["httpGet"] == {"path": "/healthz", "port": "admin"}
        assert SIDECAR[kind]["exec"]["command"] == ["loopguard", "healthcheck"]


@pytest.mark.parametrize("container", [CONTAINER, SIDECAR], ids=["base", "sidecar"])
def test_hardened(container: dict[str, Any]) -> None:
    """Each runs as the image's user, on a read-only root, without a capability."""
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"].split(":")[0] == "loopguard"
    for name, resource in RESOURCES:
        if resource["kind"] == "Deployment":
            context = resource["spec"]["template"]["spec"]["securityContext"]
            user = f"{context['runAsUser']}:{context['runAsGroup']}"
            assert (user, context["runAsNonRoot"]) == (last("USER"), True), name


def test_selectors() -> None:
    """Whatever selects the replicas selects them, and the admin port is in a Service of its own."""
    labels = DEPLOYMENT["template"]["metadata"]["labels"].items()
    selectors = [
        DEPLOYMENT["selector"]["matchLabels"],
        BASE["Service", "loopguard"]["spec"]["selector"],
        BASE["Service", "loopguard-admin"]["spec"]["selector"],
        BASE["PodDisruptionBudget", "loopguard"]["spec"]["selector"]["matchLabels"],
        BASE["NetworkPolicy", "loopguard"]["spec"]["podSelector"]["matchLabels"],
        POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels
    target = BASE["HorizontalPodAutoscaler", "loopguard"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) in BASE
    for name, port in (("loopguard", "api"), ("loopguard-admin", "admin")):
        ports = BASE["Service", name]["spec"]["ports"]
        assert [each["targetPort"] for each in ports] == [port]
    allowed = {
        port["port"]
        for rule in BASE["NetworkPolicy", "loopguard"]["spec"]["ingress"]
        for port in rule["ports"]
    }
    assert allowed == PORTS.keys()


def test_replicas() -> None:
    """There are replicas to spare: the autoscaler starts where the Deployment does, the budget
    leaves most of them, and a rollout takes none away before another one is ready.
    """
    scaler = BASE["HorizontalPodAutoscaler", "loopguard"]["spec"]
    assert DEPLOYMENT["replicas"] == scaler["minReplicas"] >= 2
    budget = BASE["PodDisruptionBudget", "loopguard"]["spec"]["maxUnavailable"]
    assert budget < scaler["minReplicas"]
    assert DEPLOYMENT["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_autoscaler_asks_for_a_metric_that_is_there() -> None:
    """The autoscaler's metric is one of /metrics."""
    (metric,) = BASE["HorizontalPodAutoscaler", "loopguard"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    registry = CollectorRegistry()
    Metrics(registry)
    assert f"# TYPE {name} gauge" in generate_latest(registry).decode()


def test_prometheus_finds_the_replicas() -> None:
    """The ServiceMonitor selects the admin Service, and calls the job as the alerts do."""
    monitor = BASE["ServiceMonitor", "loopguard"]["spec"]
    labels = BASE["Service", "loopguard-admin"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    callers = BASE["Service", "loopguard"]["metadata"]["labels"]
    assert not monitor["selector"]["matchLabels"].items() <= callers.items()
    (endpoint,) = monitor["endpoints"]
    ports = [port["name"] for port in BASE["Service", "loopguard-admin"]["spec"]["ports"]]
    assert [endpoint["port"]] == ports
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    assert labels[monitor["jobLabel"]] == scraped["scrape_configs"][0]["job_name"]


def test_rules_are_the_shipped_ones() -> None:
    """The operator is given the rules and alerts of deploy/prometheus; if not, write them anew:
    `python -m tests.deploy.prometheus_rule`.
    """
    assert BASE["PrometheusRule", "loopguard"] == prometheus_rule.resource()
