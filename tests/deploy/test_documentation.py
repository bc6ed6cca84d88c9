"""What docs/deployment.md says of the files is what they say."""

import re
from pathlib import Path

import yaml

from tests.deploy.test_compose import SERVICES
from tests.deploy.test_container import BUILD, IMAGE, instructions, last

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "deployment.md").read_text("utf-8")


def test_build_arguments() -> None:
    """Every build argument that is named is one, and every one is named."""
    declared = {
        rest.partition("=")[0]
        for word, rest in (instructions()[0], *BUILD, *IMAGE)
        if word == "ARG"
    }
    assert set(re.findall(r"--build-arg (\w+)=", TEXT)) == declared
    assert f"PYTHON_IMAGE={instructions()[0].rest.partition('=')[2]}@sha256:..." in TEXT


def test_image() -> None:
    """The user, the port and the volume are the image's."""
    user, _ = last("USER").split(":")
    assert f"`0.0.0.0:{last('EXPOSE')}` as user {user} " in TEXT
    assert f"the volume `{last('VOLUME')}`" in TEXT


def test_compose() -> None:
    """The ports that are told are those that are published, likewise the profiles."""
    told = set(map(int, re.findall(r"\b(?:port |ports |on |and )(\d{4})\b", TEXT)))
    published = {
        int(port.split(":")[1])
        for service in SERVICES.values()
        for port in service.get("ports", ())
    }
    assert told == published - {8091}
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", ())}
    assert set(re.findall(r"--profile (\w+)", TEXT)) == profiles


def test_kubernetes() -> None:
    """The times of a pod's end are those of its files; the secret has the keys that are read."""
    base = ROOT / "deploy" / "kubernetes" / "base"
    toml = (base / "loopguard.toml").read_text("utf-8")
    for name in ("drain_delay_s", "drain_s"):
        (seconds,) = re.findall(rf"^{name} = (\d+)", toml, re.MULTILINE)
        assert re.search(rf"`{name}`, {seconds} s", TEXT)
    deployment = yaml.safe_load((base / "deployment.yaml").read_text("utf-8"))
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    read = {Path(variable["value"]).name for variable in variables}
    assert set(re.findall(r"--from-file=([\w-]+)", TEXT)) == read
