"""Dockerfiles, compose.yaml and the systemd unit, read by the programs whose files they are; nothing is started.

`make container-test` builds the image and runs it. Here hadolint lints, `docker-compose config` resolves, and what the
files say of each other must be true: ports, addresses, paths, users, settings.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest
import yaml

from node import config
from node.config import Settings
from node.settings.destinations import DicomDestination
from tests.paths import REPOSITORY
from tests.support.peers import LOOPBACK, missing, require
from tests.support.web_access import client_of, opened, users_in

DEPLOY = REPOSITORY / "deploy"
COMPOSE = DEPLOY / "compose"
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")

IMAGES = ("BASE_IMAGE", "DEBIAN_IMAGE", "PROMETHEUS_TAG", "ALERTMANAGER_TAG", "GRAFANA_TAG")
VARIABLES = (*IMAGES, "NODE_TOML", "ALERTMANAGER_YML")

Object = dict[str, typing.Any]


def tool(name: str) -> str:
    """Find a program that came with a Python package of the extra `test`."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    return found or missing(f"{name} is not installed (make setup), or has no package for this machine")


@pytest.fixture(scope="module")
def services() -> Object:
    """The services of compose.yaml as Docker Compose understands it, every short form written out."""
    return cast(Object, resolved()["services"])


def resolved(*options: str, last: Path = DEPLOY / "compose.yaml", **variables: str) -> Object:
    """The file with options of `docker-compose` and variables of the environment."""
    command = [tool("docker-compose"), *options, "--file", str(last), "config", "--format", "json"]
    plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(command, env={**plain, **variables}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return cast(Object, json.loads(done.stdout))


def images_of(services: Object) -> dict[str, str | None]:
    """What each argument of `IMAGES` gives: a base image of a build, or the image of a service."""
    return {
        "BASE_IMAGE": services["node"]["build"].get("args", {}).get("BASE_IMAGE"),
        "DEBIAN_IMAGE": services["orthanc"]["build"].get("args", {}).get("DEBIAN_IMAGE"),
        "PROMETHEUS_TAG": services["prometheus"]["image"],
        "ALERTMANAGER_TAG": services["alertmanager"]["image"],
        "GRAFANA_TAG": services["grafana"]["image"],
    }


@pytest.mark.parametrize("own", ["", "/srv/own.toml"])
def test_the_node_takes_settings_of_ones_own_or_the_sample(own: str) -> None:
    volumes = resolved(NODE_TOML=own)["services"]["node"]["volumes"]

    [mounted] = [volume for volume in volumes if volume["target"] == "/etc/chex-node/node.toml"]
    assert mounted["source"] == (own or str(COMPOSE / "node.toml"))


@pytest.fixture(scope="module")
def node() -> Settings:
    return config.load(COMPOSE / "node.toml")


def address_of(service: Object) -> str:
    return str(service["networks"]["reading-room"]["ipv4_address"])


@pytest.mark.parametrize("path", ["Dockerfile", "deploy/compose/orthanc.Dockerfile"])
def test_hadolint_finds_nothing(path: str) -> None:
    done = subprocess.run([tool("hadolint"), path], cwd=REPOSITORY, capture_output=True, text=True)

    assert (done.stdout, done.returncode) == ("", 0)


def test_runtime_stages_are_not_root_and_copy_only_the_program() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    final = {stage.partition("\n")[0].partition(" AS ")[2]: stage for stage in stages}

    assert "\nUSER 10001:10001\n" in final["runtime"]
    assert 'CMD ["serve", "/etc/chex-node/node.toml"]' in final["runtime"]
    for target in ("cpu", "gpu"):
        copies = re.findall(r"^COPY (.*)$", final[target], re.MULTILINE)
        assert copies == [f"--from=program-{target} {path} {path}" for path in ("/opt/venv", "/opt/chex-node")]
        assert final[target].startswith("runtime AS ")
        assert "RUN" not in final[target]
    # what the script lets pip take is the matter of `test_image_packages`
    installs = re.findall(r"^RUN .*install.*$", DOCKERFILE.partition(" AS runtime\n")[0], re.MULTILINE)
    assert installs == [f"RUN sh deploy/image/install.sh {extra} /opt/venv" for extra in ("cpu", "gpu")]


def test_everything_that_the_image_copies_is_let_through_and_nothing_else() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    needed = "LICENSE README.md constraints.txt pyproject.toml export language models models/weights/phantom node"
    needed += " deploy/backup.py deploy/image deploy/wheel"

    let_through = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert let_through == set(needed.split())
    assert [path for path in let_through if not (REPOSITORY / path).exists()] == []


def test_every_service_is_locked_down_and_writes_nothing_that_is_mounted(services: Object) -> None:
    assert set(services) == {"node", "orthanc", "prometheus", "alertmanager", "grafana"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp:size=1g"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    bound = [mount for service in services.values() for mount in service["volumes"] if mount["type"] == "bind"]
    assert len(bound) >= 9
    assert [mount for mount in bound if not Path(mount["source"]).exists() or not mount.get("read_only")] == []


def test_nobody_starts_before_what_it_needs_is_healthy(services: Object) -> None:
    needs = {
        name: {other: about["condition"] for other, about in service.get("depends_on", {}).items()}
        for name, service in services.items()
    }

    assert needs == {
        "node": {"orthanc": "service_healthy"},
        "orthanc": {},
        "prometheus": {"node": "service_healthy"},
        "alertmanager": {},
        "grafana": {"prometheus": "service_healthy"},
    }
    checked = {name for name, service in services.items() if "healthcheck" in service} | {"node"}
    assert checked == set(services)
    assert "\nHEALTHCHECK " in DOCKERFILE


def test_node_and_archive_find_and_know_each_other(services: Object, node: Settings) -> None:
    archive = json.loads((COMPOSE / "orthanc.json").read_text(encoding="utf-8"))

    (destination,), (caller,) = node.destinations, node.listener.callers
    assert isinstance(destination, DicomDestination)
    assert archive["DicomModalities"] == {"CHEX": [node.listener.ae_title, "node", node.listener.port]}
    assert (destination.ae_title, destination.port) == (archive["DicomAet"], archive["DicomPort"])
    assert destination.host in services
    assert caller.ae_title == archive["DicomAet"]
    assert caller.hosts == (address_of(services["orthanc"]),)
    assert ipaddress.ip_address(address_of(services["node"])) in ipaddress.ip_network("172.30.0.0/25")


def test_the_settings_use_what_the_image_has_and_pages_are_for_this_machine_alone(
    services: Object, node: Settings
) -> None:
    exposed = re.findall(r"^EXPOSE (\d+) (\d+)$", DOCKERFILE, re.MULTILINE)
    assert exposed == [(str(node.listener.port), str(node.http.port))]
    assert f"http://127.0.0.1:{node.http.port}/ready" in DOCKERFILE
    assert (node.listener.host, node.http.host) == ("0.0.0.0", "0.0.0.0")
    mounted = {mount["target"] for mount in services["node"]["volumes"]}
    assert mounted == {str(node.storage.directory), "/etc/chex-node/node.toml"}
    assert f"-o chex -g chex {node.storage.directory}\n" in DOCKERFILE

    ports = [port for service in services.values() for port in service.get("ports", ())]
    published = {(port["host_ip"], int(port["published"]), port["target"]) for port in ports}
    assert {host for host, _, _ in published} == {LOOPBACK}
    assert (LOOPBACK, 8080, node.http.port) in published
    (network,) = resolved()["networks"]["reading-room"]["ipam"]["config"]
    assert node.http.trusted_proxy == (network["gateway"],)


@pytest.mark.parametrize(
    ("peer", "name", "headers", "status"),
    [
        ("172.30.0.1", "127.0.0.1:8080", {}, 303),
        ("172.30.0.1", "localhost:8080", {}, 303),
        ("172.30.0.1", "evil.example", {}, 400),
        ("172.30.0.1", "127.0.0.1:8080", {"x-remote-user": "ada"}, 303),
        ("172.30.0.11", "127.0.0.1:8080", {}, 403),
        ("192.168.1.20", "127.0.0.1:8080", {}, 403),
        ("192.168.1.20", "127.0.0.1:8080", {"x-forwarded-for": "172.30.0.1", "x-forwarded-proto": "https"}, 403),
    ],
)
def test_only_this_machine_is_asked_for_a_password(
    node: Settings, tmp_path: Path, peer: str, name: str, headers: dict[str, str], status: int
) -> None:
    http = replace(node.http, password_file=users_in(tmp_path, "ada"))
    with opened(http, tmp_path) as access, client_of(access, peer=peer, local="172.30.0.10") as client:
        answer = client.get("/", headers={"accept": "text/html", "host": name, **headers})

    assert answer.status_code == status
    assert answer.headers.get("location", "").startswith("/login?") == (status == 303)


def test_the_example_of_single_sign_on_is_of_one_piece(tmp_path: Path) -> None:
    said = {"OIDC_SECRET": "a" * 64, "SSO_PASSWORD": "b" * 12}
    services = resolved("--file", str(DEPLOY / "compose.yaml"), last=COMPOSE / "keycloak.yaml", **said)["services"]
    whole = tmp_path / "node.toml"
    whole.write_text("".join((COMPOSE / name).read_text(encoding="utf-8") for name in ("node.toml", "keycloak.toml")))
    realm = json.loads((COMPOSE / "keycloak.json").read_text(encoding="utf-8"))

    http = config.load(whole).http

    assert http.oidc is not None
    assert http.oidc.issuer == f"{services['keycloak']['environment']['KC_HOSTNAME']}/realms/{realm['realm']}"
    assert services["keycloak"]["networks"]["reading-room"]["aliases"] == [urlsplit(http.oidc.issuer).hostname]
    (client,) = realm["clients"]
    assert (client["clientId"], client["publicClient"]) == (http.oidc.client_id, False)
    assert client["redirectUris"] == [f"http://{name}:8080/login/callback" for name in http.hosts]
    (mapper,) = client["protocolMappers"]
    assert mapper["config"]["claim.name"] == http.oidc.groups_claim
    groups = {user["username"]: user["groups"] for user in realm["users"]}
    assert groups == {"ada": ["/chex-admins"], "bob": ["/radiology"]}
    assert {group["name"] for group in realm["groups"]} == {*http.oidc.administrator_groups, *http.oidc.reader_groups}
    assert [secret["source"] for secret in services["node"]["secrets"]] == [http.oidc.client_secret_file.name]


ADDRESSES = {
    "127.0.0.1:8080": "node:8080",
    "127.0.0.1:9093": "alertmanager:9093",
    "http://127.0.0.1:9090": "http://prometheus:9090",
}


def test_what_watches_in_compose_differs_in_the_address_only() -> None:
    originals = {
        "prometheus.yml": "prometheus/prometheus.yml",
        "datasource.yaml": "grafana/provisioning/datasources/prometheus.yaml",
    }
    for ours, original in originals.items():
        text = (DEPLOY / original).read_text(encoding="utf-8")
        for here, there in ADDRESSES.items():
            text = text.replace(here, there)
        assert yaml.safe_load((COMPOSE / ours).read_text(encoding="utf-8")) == yaml.safe_load(text), ours


def test_the_archive_of_compose_is_that_of_the_orthanc_example() -> None:
    ours, example = (
        json.loads((DEPLOY / folder / "orthanc.json").read_text(encoding="utf-8")) for folder in ("compose", "orthanc")
    )

    places = {"StorageDirectory", "IndexDirectory", "RemoteAccessAllowed", "DicomModalities"}
    assert {key for key in {*ours, *example} if ours.get(key) != example.get(key)} == places


def test_grafana_finds_its_dashboards_and_prometheus_its_rules(services: Object) -> None:
    targets = {name: {mount["target"] for mount in services[name]["volumes"]} for name in ("grafana", "prometheus")}
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/chex-node.yaml").read_text(encoding="utf-8"))
    rules = yaml.safe_load((COMPOSE / "prometheus.yml").read_text(encoding="utf-8"))["rule_files"]

    assert provider["providers"][0]["options"]["path"] in targets["grafana"]
    assert {f"/etc/prometheus/{name}" for name in rules} <= targets["prometheus"]


def test_systemd_accepts_the_unit_and_finds_it_locked_down(tmp_path: Path) -> None:
    program = require("systemd-analyze")
    unit = (DEPLOY / "systemd" / "chex-node.service").read_text(encoding="utf-8")
    here = unit.replace("/opt/chex-node/.venv/bin/python", sys.executable).replace("/opt/chex-node", str(REPOSITORY))
    path = tmp_path / "chex-node.service"
    path.write_text(here, encoding="utf-8")

    verified = subprocess.run([program, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60)
    security = subprocess.run(
        [program, "security", "--offline=true", "--threshold=20", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    said = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    assert (said["Restart"], said["RestartPreventExitStatus"], said["KillMode"]) == ("always", "2", "mixed")
    assert [said[name] for name in ("UMask", "StateDirectoryMode", "LogsDirectoryMode")] == ["0077", "0700", "0700"]
    assert (verified.returncode, verified.stderr) == (0, "")
    assert security.returncode == 0, security.stdout[-600:]
