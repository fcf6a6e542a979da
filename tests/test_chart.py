"""The chart in helm/, rendered by Helm's own library, checked against Kubernetes' schemas and the node's settings.

ServiceMonitor and PrometheusRule belong to an operator and have no schema there; their content is compared instead.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import kubernetes_validate
import pytest
import yaml

from node import __version__, config
from node.config import DicomDestination, Hl7Destination, Settings

REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "helm"
EXAMPLES = ("cpu", "gpu")
KUBERNETES = "1.34"

# What the chart sets by itself, so that Service, probes and volumes fit.
OWN = {"listener.host", "listener.port", "http.host", "http.port", "orders.host", "orders.port"}
OWN_DIRECTORIES = {"storage.directory", "model.directory"}

Object = dict[str, typing.Any]

try:
    import helm_python as helm
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip("Helm's library has no wheel for this machine", allow_module_level=True)


def example(name: str) -> Object:
    return cast(Object, yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text(encoding="utf-8")))


def rendered(values: Object) -> list[Object]:
    texts = helm.Chart.load(CHART).render(values, name="cxr", namespace="radiology", is_install=True)
    return [one for text in texts.values() for one in yaml.safe_load_all(text) if one]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def the_only(objects: list[Object], kind: str) -> Object:
    (found,) = of_kind(objects, kind)
    return found


def settings_of(objects: list[Object]) -> Settings:
    text = next(one["data"]["node.toml"] for one in of_kind(objects, "ConfigMap") if "node.toml" in one["data"])
    return config.parse(tomllib.loads(text))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_object_is_one_of_kubernetes(name: str) -> None:
    objects = rendered(example(name))

    assert len(objects) >= 6
    for one in objects:
        if not one["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_helm_finds_nothing_to_complain_about() -> None:
    for name in EXAMPLES:
        report = helm.lint(CHART, example(name), strict=True)

        assert report["errors"] == []
        assert [one["error"] for one in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_node_accepts_its_settings_and_they_fit_what_is_around_it(name: str) -> None:
    objects = rendered(example(name))
    settings = settings_of(objects)

    (container,) = the_only(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert ports["dicom"] == settings.listener.port
    assert ports["http"] == settings.http.port
    assert ports.get("orders") == (settings.orders and settings.orders.port)
    assert str(settings.storage.directory) in mounts
    assert settings.model.directory == Path("models/weights/phantom") or "/models" in mounts
    for destination in settings.destinations:
        if isinstance(destination, Hl7Destination) and destination.tls:
            assert str(destination.tls.ca.parent) in mounts


def test_the_pod_has_no_rights_and_writes_only_to_its_volumes() -> None:
    pod = the_only(rendered(example("gpu")), "StatefulSet")["spec"]["template"]["spec"]

    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert f"USER {pod['securityContext']['runAsUser']}:" in (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_only_known_callers_reach_the_listener_and_their_addresses_survive() -> None:
    objects = rendered(example("gpu"))
    settings = settings_of(objects)

    policy = the_only(objects, "NetworkPolicy")["spec"]
    dicom = next(one for one in policy["ingress"] if one["ports"] == [{"port": "dicom"}])
    allowed = {peer["ipBlock"]["cidr"].split("/")[0] for peer in dicom["from"]}
    (entrance,) = (one for one in of_kind(objects, "Service") if one["spec"]["type"] == "LoadBalancer")
    assert allowed == {host for caller in settings.listener.callers for host in caller.hosts}
    assert {one["cidr"].split("/")[1] for one in (peer["ipBlock"] for peer in dicom["from"])} == {"32", "128"}
    assert entrance["spec"]["externalTrafficPolicy"] == "Local"
    outward = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert outward == {53} | {destination.port for destination in settings.destinations}


def test_rules_and_dashboards_are_those_of_deploy(tmp_path: Path) -> None:
    objects = rendered(example("gpu"))
    packed = helm.Chart.load(helm.package(CHART, destination=tmp_path))

    sources = [REPOSITORY / "deploy" / "prometheus" / name for name in ("recording.yml", "alerts.yml")]
    groups = [group for path in sources for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    assert the_only(objects, "PrometheusRule")["spec"]["groups"] == groups
    dashboards = {
        path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / "deploy/grafana").glob("*.json")
    }
    found = [one for one in of_kind(objects, "ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    assert dashboards
    assert {name: json.loads(text) for one in found for name, text in one["data"].items()} == {
        name: json.loads(text) for name, text in dashboards.items()
    }
    assert {Path(one["name"]).name for one in packed.files} >= {*dashboards, "recording.yml", "alerts.yml"}
    assert all(len(json.dumps(one)) < 1_000_000 for one in found), "a ConfigMap holds 1 MiB"


def test_the_job_that_the_alerts_ask_for_is_what_the_operator_makes() -> None:
    objects = rendered(example("gpu"))

    monitor = the_only(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (service,) = (one for one in of_kind(objects, "Service") if wanted.items() <= one["metadata"]["labels"].items())
    job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert f'up{{job="{job}"}}' in json.dumps(the_only(objects, "PrometheusRule")).replace('\\"', '"')
    assert [port["name"] for port in service["spec"]["ports"]] == [monitor["spec"]["endpoints"][0]["port"]]


def test_the_schema_knows_exactly_the_settings_that_are_not_the_charts_own() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    tables = cast(Object, schema["properties"]["settings"]["properties"])
    destinations = {"dicom": DicomDestination, "hl7": Hl7Destination}

    known = {f"{table}.{key}" for table, about in tables.items() for key in about.get("properties", ())}
    assert known == set(setting_names()) - OWN - OWN_DIRECTORIES
    for name, kind in destinations.items():
        assert set(schema["$defs"][name]["properties"]) == {item.name for item in dataclasses.fields(kind)}


def setting_names() -> Iterator[str]:
    """Every `table.key` of node.toml, destinations aside."""
    hints = typing.get_type_hints(Settings)
    for item in dataclasses.fields(Settings):
        kinds = [kind for kind in (hints[item.name], *typing.get_args(hints[item.name])) if isinstance(kind, type)]
        for kind in kinds:
            if dataclasses.is_dataclass(kind) and item.name != "destinations":
                yield from (f"{item.name}.{inner.name}" for inner in dataclasses.fields(kind))


@pytest.mark.parametrize(
    "wrong",
    [
        {"unknown": 1},
        {"settings": {"listener": {"callers": []}, "destinations": []}},
        {"settings": {"listener": {"port": 104}}},
        {"settings": {"destinations": [{"name": "p", "ae_title": "P", "host": "h"}]}},
        {"service": {"type": "ExternalName"}},
        {"gpu": {"count": 0}},
        {"storage": {"size": "much"}},
    ],
)
def test_wrong_values_are_refused(wrong: Mapping[str, object]) -> None:
    chart = helm.Chart.load(CHART)
    values = merged(example("cpu"), wrong)

    chart.validate_schema(example("cpu"))
    with pytest.raises(helm.HelmValuesError):
        chart.validate_schema(values)


def merged(values: Object, changes: Mapping[str, object]) -> Object:
    """The values with changes put over them, as `helm install --set` does."""
    result = dict(values)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return result


def test_chart_and_program_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert chart["appVersion"] == chart["version"] == __version__
