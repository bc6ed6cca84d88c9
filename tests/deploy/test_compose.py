"""compose.yaml is accepted, and says what the program and the other files say."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from loopguard.settings import Server, load

ROOT = Path(__file__).parents[2]
PROFILES = ("demo", "postgres")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
LOOPGUARDS = [name for name, service in SERVICES.items() if service["image"] == "loopguard"]
SERVING = [name for name in LOOPGUARDS if "command" not in SERVICES[name]]

# What a user may set for a service to take.
OF_THE_SHELL = {
    "LOOPGUARD_LEDGER__URL": "postgresql://user@host/name",
    "LOOPGUARD_SERVER__CLIENT_TOKENS": "token",
    "LOOPGUARD_UPSTREAM__API_KEY": "key",
    "LOOPGUARD_UPSTREAM__BASE_URL": "http://upstream.example/v1",
}


def compose() -> list[str]:
    """The command of Compose: the engine's plug-in, or Debian's."""
    plug_in = ["docker", "compose"]
    if (
        shutil.which("docker")
        and not subprocess.run([*plug_in, "version"], capture_output=True, check=False).returncode
    ):
        return plug_in
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("Compose is not installed (Debian's package docker-compose)")


@pytest.mark.parametrize("profiles", [(), *((profile,) for profile in PROFILES), PROFILES])
def test_accepted(profiles: tuple[str, ...]) -> None:
    """Compose takes the file with any of its profiles, in an environment without a variable."""
    words = [word for profile in profiles for word in ("--profile", profile)]
    ran = subprocess.run(
        [*compose(), *words, "config", "--services"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    # Debian's lists those of all profiles.
    assert set(ran.stdout.split()) >= {
        name
        for name, service in SERVICES.items()
        if set(service.get("profiles", ())) <= set(profiles)
    }


def test_profiles() -> None:
    """Without a profile there are loopguard, Prometheus and Grafana; each profile adds its own."""
    by_profile: dict[tuple[str, ...], set[str]] = {}
    for name, service in SERVICES.items():
        by_profile.setdefault(tuple(service.get("profiles", ())), set()).add(name)
    assert by_profile == {
        (): {"loopguard", "prometheus", "grafana"},
        ("demo",): {"runaway", "demo"},
        ("postgres",): {"postgres", "replica-a", "replica-b"},
    }


@pytest.mark.parametrize("name", SERVICES)
def test_published_on_loopback(name: str) -> None:
    """No port is published beyond this machine."""
    for port in SERVICES[name].get("ports", ()):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", SERVING)
def test_loopguard_starts(name: str) -> None:
    """What each loopguard is given is accepted by it, and is where its ports lead."""
    service = SERVICES[name]
    environ = {
        key: OF_THE_SHELL[key] if text is None else text
        for key, text in service["environment"].items()
    }
    # As the image sets it.
    settings = load(None, environ | {"LOOPGUARD_SERVER__HOST": "0.0.0.0"})
    inner = {int(port.rpartition(":")[2]) for port in service["ports"]}
    assert settings.server.port in inner
    assert inner <= {settings.server.port, settings.server.admin_port}
    assert settings.server.admin_host == "0.0.0.0"
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings.server.drain_delay_s + settings.server.drain_s


@pytest.mark.parametrize("name", LOOPGUARDS)
def test_hardened(name: str) -> None:
    """Each runs without privileges on a read-only root."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_state_is_kept() -> None:
    """What keeps its ledger in SQLite keeps it in a volume of its own."""
    kept = {
        name: SERVICES[name]["volumes"]
        for name in SERVING
        if not SERVICES[name]["environment"].get("LOOPGUARD_LEDGER__URL")
    }
    assert kept == {
        "loopguard": ["state:/var/lib/loopguard"],
        "demo": ["demo:/var/lib/loopguard"],
    }
    assert {"state", "demo"} <= COMPOSE["volumes"].keys()


def test_mounted_files_are_there() -> None:
    """What is mounted from the repository is in it, and what the others expect is in that."""
    mounts = {
        Path(source)
        for service in SERVICES.values()
        for source, _, _ in (volume.partition(":") for volume in service.get("volumes", ()))
        if source.startswith(".")
    }
    assert len(mounts) == 3
    for mount in mounts:
        assert (ROOT / mount).is_dir()
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    (dashboards,) = [
        volume for volume in SERVICES["grafana"]["volumes"] if "dashboards:/" in volume
    ]
    source, target, _ = dashboards.split(":")
    assert (ROOT / source / Path(home).relative_to(target)).is_file()
    provider = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/dashboards/loopguard.yml").read_text("utf-8")
    )
    assert provider["providers"][0]["options"]["path"] == target


def test_prometheus_finds_them() -> None:
    """Prometheus asks by the name that each loopguard has, and no other service, at its port."""
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    (discovery,) = scraped["scrape_configs"][0]["dns_sd_configs"]
    (alias,) = discovery["names"]
    named = [
        name
        for name, service in SERVICES.items()
        if isinstance(networks := service.get("networks"), dict)
        and alias in networks["default"]["aliases"]
    ]
    assert named == SERVING
    assert discovery["port"] == Server().admin_port


def test_grafana_finds_prometheus() -> None:
    """Grafana's source is the service that Prometheus is."""
    sources = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text("utf-8")
    )
    host, port = sources["datasources"][0]["url"].removeprefix("http://").split(":")
    assert SERVICES[host]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_demo_asks_the_runaway() -> None:
    """The upstream of the demo is the fake model, at the port that it has unless told otherwise."""
    url = SERVICES["demo"]["environment"]["LOOPGUARD_UPSTREAM__BASE_URL"]
    assert url == "http://runaway:8089/v1"
    assert "8089" in (ROOT / "loopguard" / "runaway.py").read_text("utf-8")
    assert "--port" not in SERVICES["runaway"]["command"]


@pytest.mark.parametrize("name", SERVICES)
def test_no_registry(name: str) -> None:
    """No image names the registry that it comes from: that is whoever runs it to say."""
    image = re.sub(r"\$\{\w+:-(.+)\}", r"\1", SERVICES[name]["image"])
    assert re.fullmatch(r"([a-z]+/)?[a-z]+(:[\w.-]+)?", image)
