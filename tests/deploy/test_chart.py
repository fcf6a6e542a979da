"""The chart in helm/, rendered by Helm's own library: objects of Kubernetes and its operators, settings of the node.

Kubernetes' own objects are held against its schemas, those of KEDA and of the Prometheus operator against models that a
package made of their definitions (KEDA 2.16, operator 0.80).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
import yaml

from docs.statement import schema as made_schema
from node import config
from node.__main__ import main
from node.config import Caller, Settings
from node.net.tls import ca_of
from node.settings.destinations import TYPES
from tests.deploy import chart
from tests.deploy.chart import CHART, ROLES, Object, example, helm_python, made, merged, of_kind, rendered, the_only
from tests.paths import REPOSITORY

pytestmark = pytest.mark.drill(part="deployment")

# What the chart sets by itself, so that Service, probes and volumes fit.
OWN = {"listener.host", "listener.port", "http.host", "http.port", "http.probe_port", "orders.host", "orders.port"}
OWN |= {"storage.directory", "storage.database_url", "model.directory"}
OWN |= {"http.show_patient"}  # for one machine alone; a pod is reached from others

# Where the models of an operator's objects are.
OPERATORS = {
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
    "monitoring.coreos.com/v1alpha1": "cloudcoil.models.prometheus_operator.v1alpha1",
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
}


@pytest.mark.parametrize("name", chart.EXAMPLES)
def test_helm_and_the_schemas_of_kubernetes_accept_every_example(name: str) -> None:
    own = [manifest for manifest in made(name, {}) if manifest["apiVersion"] not in OPERATORS]
    report = helm_python.lint(CHART, example(name), strict=True)

    assert len(own) >= 6
    assert report["errors"] == []
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_the_objects_of_operators_are_theirs_whole() -> None:
    found = [manifest for manifest in chart.made_of("split") if manifest["apiVersion"] in OPERATORS]
    found.append(example("mail"))

    kinds = {"ServiceMonitor", "PrometheusRule", "AlertmanagerConfig", "ScaledObject", "TriggerAuthentication"}
    assert {manifest["kind"] for manifest in found} == kinds
    for manifest in found:
        model = getattr(importlib.import_module(OPERATORS[manifest["apiVersion"]]), manifest["kind"])
        kept = model.model_validate(manifest).model_dump(by_alias=True, exclude_unset=True, mode="json")
        assert kept == manifest, "a key that the model does not know is lost in it"


@pytest.mark.parametrize("name", chart.EXAMPLES)
def test_the_node_accepts_the_settings_and_they_fit_the_chart(name: str) -> None:
    objects = chart.made_of(name)
    settings = chart.settings_of(objects)

    listening = {"dicom": settings.listener.port, "http": settings.http.port}
    if settings.listener.tls is not None:
        listening["dicom-tls"] = settings.listener.tls.port
    if settings.orders is not None:
        listening["orders"] = settings.orders.port
    for role, workload in chart.workloads(objects).items():
        ports = {port["name"]: port["containerPort"] for port in chart.container_of(workload)["ports"]}
        mounts = {mount["mountPath"] for mount in chart.container_of(workload)["volumeMounts"]}
        assert ports == (listening if role in ("node", "listener") else {"http": settings.http.port})
        assert str(settings.storage.directory) in mounts
        assert ("/models" in mounts) is (
            role in ("node", "worker") and "existingClaim" in example(name).get("model", {})
        )
        if settings.http.password_file is not None:
            assert str(settings.http.password_file.parent) in mounts
        for _, tls in config.tls_tables(settings):
            assert {str(path.parent) for path in (ca_of(tls), tls.certificate, tls.key) if path} <= mounts


@pytest.mark.parametrize(("name", "role"), [("gpu", "node"), *[("split", role) for role in ROLES]])
def test_a_pod_has_no_rights_and_writes_only_to_its_volumes(name: str, role: str) -> None:
    workload = chart.workloads(chart.made_of(name))[role]

    pod, container = chart.pod_of(workload), chart.container_of(workload)
    rights = pod["securityContext"]
    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] == rights["runAsGroup"] == rights["fsGroup"]
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert f"USER {pod['securityContext']['runAsUser']}:" in (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: (probe["path"], probe["port"]) for kind, probe in asked.items()} == {
        "startup": ("/live", "http"), "liveness": ("/live", "http"), "readiness": ("/ready", "http"),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "role"), [("gpu", "node"), ("split", "worker")])
def test_only_pods_that_read_films_take_a_gpu_and_own_engines(name: str, role: str) -> None:
    found = chart.workloads(chart.made_of(name))

    for other, workload in found.items():
        container = chart.container_of(workload)
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert container["resources"]["limits"].get("nvidia.com/gpu") == (1 if other == role else None)
        assert container["image"].endswith("-gpu" if other == role else "-cpu")
        assert chart.pod_of(workload).get("runtimeClassName") == ("nvidia" if other == role else None)
        assert mounts.get("engines") == ("/var/lib/chex-node/engines" if other == role else None)
    (claim,) = found[role]["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "engines"


def test_one_machine_has_one_pod_and_no_database_server() -> None:
    objects = chart.made_of("cpu")

    ((role, workload),) = chart.workloads(objects).items()
    assert (role, workload["spec"]["replicas"]) == ("node", 1)
    assert "args" not in chart.container_of(workload)
    assert chart.settings_of(objects).storage.database_url == ""
    assert the_only(objects, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOnce"]


@pytest.mark.parametrize(("name", "role"), [("gpu", "node"), ("split", "listener")])
def test_only_known_callers_reach_the_listener_by_own_address(name: str, role: str) -> None:
    objects = chart.made_of(name)

    (dicom,) = (rule for rule in chart.policies(objects)[role]["ingress"] if {"port": "dicom"} in rule["ports"])
    blocks = {peer["ipBlock"]["cidr"] for peer in dicom["from"] if "ipBlock" in peer}
    hosts = {host for caller in chart.settings_of(objects).listener.callers for host in caller.hosts}
    assert blocks == {f"{host}/{128 if ':' in host else 32}" for host in hosts}
    assert len(blocks) == len(dicom["from"]) - 1  # the pod of `helm test`
    (entrance,) = (manifest for manifest in of_kind(objects, "Service") if manifest["spec"]["type"] == "LoadBalancer")
    assert entrance["spec"]["externalTrafficPolicy"] == "Local"
    assert entrance["spec"]["selector"]["app.kubernetes.io/component"] == role


def test_rules_and_dashboards_are_those_of_deploy(tmp_path: Path) -> None:
    objects = chart.made_of("gpu")
    sources = [REPOSITORY / "deploy" / "prometheus" / name for name in ("recording.yml", "alerts.yml")]
    groups = [group for path in sources for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    assert the_only(objects, "PrometheusRule")["spec"]["groups"] == groups
    site = {**example("gpu"), "monitoring": {**example("gpu")["monitoring"], "docs": "https://docs.example/node/"}}
    ruled = json.dumps(the_only(rendered(site), "PrometheusRule")["spec"]["groups"])
    assert json.loads(ruled.replace("https://docs.example/node", "{{ $externalLabels.docs }}")) == groups
    assert "https://docs.example/node/operate/runbook/#cxrnodedown" in ruled
    dashboards = {path.name: json.loads(path.read_bytes()) for path in (REPOSITORY / "deploy/grafana").glob("*.json")}
    found = [
        manifest for manifest in of_kind(objects, "ConfigMap") if "grafana_dashboard" in manifest["metadata"]["labels"]
    ]
    assert dashboards
    assert {name: json.loads(text) for manifest in found for name, text in manifest["data"].items()} == dashboards
    packed = helm_python.Chart.load(helm_python.package(CHART, destination=tmp_path))
    assert {Path(file["name"]).name for file in packed.files} >= {*dashboards, "recording.yml", "alerts.yml"}
    assert all(len(json.dumps(manifest)) < 1_000_000 for manifest in found), "a ConfigMap holds 1 MiB"


def test_the_operator_makes_the_job_that_the_alerts_ask_for() -> None:
    objects = chart.made_of("gpu")

    monitor = the_only(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (service,) = (
        manifest for manifest in of_kind(objects, "Service") if wanted.items() <= manifest["metadata"]["labels"].items()
    )
    job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert f'up{{job="{job}"}}' in json.dumps(the_only(objects, "PrometheusRule")).replace('\\"', '"')
    assert [port["name"] for port in service["spec"]["ports"]] == [monitor["spec"]["endpoints"][0]["port"]]


def test_the_schema_knows_exactly_the_settings_of_the_node() -> None:
    text = made_schema.PATH.read_text(encoding="utf-8")
    schema = json.loads(text)
    tables = cast(Object, schema["properties"]["settings"]["properties"])

    one_of = {table: cast(Object, about.get("items", about)) for table, about in tables.items()}
    known = {f"{table}.{key}" for table, about in one_of.items() for key in about.get("properties", ())}
    assert known == set(setting_names()) - OWN
    assert made_schema.with_kinds(text) == text  # else run python -m docs.statement
    for name, kind in TYPES.own.items():
        assert set(schema["$defs"][name]["properties"]) == {item.name for item in dataclasses.fields(kind.settings)}
    caller = cast(Object, tables["listener"]["properties"]["callers"]["items"])
    assert set(caller["properties"]) == {item.name for item in dataclasses.fields(Caller)}


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
        {"settings": {"listener": {"callers": []}}},
        {"settings": {"listener": {"port": 104}}},
        {"settings": {"destinations": [{"name": "p", "ae_title": "P", "host": "h"}]}},
        {"storage": {"size": "much"}},
        {"mode": "split"},
        {"mode": "split", "database": {"host": "postgres"}},
        {"mode": "split", "database": {"host": "postgres", "secret": "s", "user": "chex:password"}},
        {"settings": {"audit": {}}},
        {"settings": {"notify": [{"name": "ward"}]}},
        {"image": {"digest": "latest"}},
        {"networkPolicy": {"egressPorts": [0]}},
        {"settings": {"listener": {"callers": [{"ae_title": "A", "hosts": ["http://a/b"]}]}}},
    ],
)
def test_wrong_values_are_refused(wrong: Mapping[str, object]) -> None:
    loaded = helm_python.Chart.load(CHART)
    values = merged(example("cpu"), wrong)

    loaded.validate_schema(example("cpu"))
    with pytest.raises(helm_python.HelmValuesError):
        loaded.validate_schema(values)


@pytest.mark.parametrize(("name", "is_good"), [("house-router", True), ("router", False), ("house-", False)])
def test_what_other_packages_add_has_a_hyphen_in_its_name(name: str, is_good: bool) -> None:
    archive = example("cpu")["settings"]["destinations"][0]
    added = {"name": "router", "type": name, "directory": "/srv/router"}
    loaded = helm_python.Chart.load(CHART)
    for destinations in ([{**archive, "outputs": ["sr", name]}], [archive, added]):
        values = merged(example("cpu"), {"settings": {"destinations": destinations}})
        if is_good:
            loaded.validate_schema(values)
            assert f'"{name}"' in json.dumps(rendered(values)).replace("\\", "")
            continue
        with pytest.raises(helm_python.HelmValuesError):
            loaded.validate_schema(values)


def test_on_many_machines_each_part_runs_under_its_pods_name_and_no_password_is_in_a_setting() -> None:
    objects = chart.made_of("split")
    found = chart.workloads(objects)

    assert {role: workload["kind"] for role, workload in found.items()} == {
        "listener": "Deployment", "worker": "StatefulSet", "sender": "StatefulSet",
    }  # fmt: skip
    for role, workload in found.items():
        container = chart.container_of(workload)
        environment = {
            variable["name"]: variable.get("valueFrom", variable.get("value")) for variable in container["env"]
        }
        assert container["args"] == ["serve", "/etc/chex-node/node.toml", "--only", role, "--executor", "$(POD_NAME)"]
        assert environment["ORT_DISABLE_TELEMETRY"] == "1"
        assert environment["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        assert environment["PGPASSWORD"] == {"secretKeyRef": {"name": "chex-postgres", "key": "password"}}
    assert chart.settings_of(objects).storage.database_url == (
        "postgresql://chex@postgres.example.org:5432/chex?sslmode=verify-full"
        "&sslrootcert=/etc/chex-tls/chex-database/ca.crt"
    )


def test_the_program_knows_the_arguments_of_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.toml")

    for workload in chart.workloads(chart.made_of("split")).values():
        arguments = chart.container_of(workload)["args"]
        assert main([missing if argument == "/etc/chex-node/node.toml" else argument for argument in arguments]) == 2
        assert "missing.toml: cannot be read" in capsys.readouterr().err  # and no word of an argument


def test_films_outlive_the_release_and_listeners_its_changes() -> None:
    objects = chart.made_of("split")
    changed = rendered(merged(example("split"), {"settings": {"study": {"quiet_seconds": 7}}}))

    claim = the_only(objects, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    probed = [service["spec"] for service in of_kind(objects, "Service") if chart.part_of(service) == "http"]
    assert [spec["publishNotReadyAddresses"] for spec in probed] == [True]
    before, after = (
        {
            workload["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            for workload in chart.workloads(found).values()
        }
        for found in (objects, changed)
    )
    assert not before & after, "changed settings start new pods"
    assert chart.workloads(objects)["listener"]["spec"]["strategy"] == {"rollingUpdate": {"maxUnavailable": 0}}
    budgets = {chart.part_of(budget): budget["spec"] for budget in of_kind(objects, "PodDisruptionBudget")}
    assert {part: (spec.get("minAvailable"), spec.get("maxUnavailable")) for part, spec in budgets.items()} == {
        "listener": (1, None), "worker": (None, 1), "sender": (None, 1),
    }  # fmt: skip


def test_listeners_scale_with_load_and_workers_with_the_queue_or_as_the_values_say() -> None:
    objects = chart.made_of("split")
    found = chart.workloads(objects)

    by_load, by_queue = the_only(objects, "HorizontalPodAutoscaler")["spec"], the_only(objects, "ScaledObject")["spec"]
    assert by_load["scaleTargetRef"]["name"] == found["listener"]["metadata"]["name"]
    assert (by_load["minReplicas"], by_load["maxReplicas"]) == (3, 12)
    assert by_queue["scaleTargetRef"] == {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": found["worker"]["metadata"]["name"],
    }  # fmt: skip
    assert (by_queue["minReplicaCount"], by_queue["maxReplicaCount"]) == (2, 14)
    assert {role for role, workload in found.items() if "replicas" in workload["spec"]} == {"sender"}, (
        "two would set the number"
    )
    (trigger,) = by_queue["triggers"]
    secret = the_only(objects, "TriggerAuthentication")
    assert trigger["authenticationRef"]["name"] == secret["metadata"]["name"]
    assert secret["spec"]["secretTargetRef"][0]["name"] == "chex-postgres"

    by_hand = made("split", {"keda": {"enabled": False}, "listener": {"autoscaling": {"enabled": False}}})
    numbers = {role: workload["spec"]["replicas"] for role, workload in chart.workloads(by_hand).items()}
    assert numbers == {"listener": 3, "worker": 2, "sender": 2}
    assert not of_kind(by_hand, "HorizontalPodAutoscaler") + of_kind(by_hand, "ScaledObject")


def test_every_part_is_entered_only_where_it_has_to_be() -> None:
    entered = {
        role: {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
        for role, spec in chart.policies(chart.made_of("split")).items()
    }

    assert entered == {"listener": {"dicom", "dicom-tls", "orders", "http"}, "worker": {"http"}, "sender": {"http"}}


@pytest.mark.parametrize(("name", "changes", "size"), [("split", {}, "2Gi"), ("cpu", {"tmpSize": "500Mi"}, "500Mi")])
def test_what_a_pod_writes_to_tmp_has_a_limit(name: str, changes: Mapping[str, object], size: str) -> None:
    for workload in chart.workloads(made(name, changes)).values():
        (tmp,) = (volume for volume in chart.pod_of(workload)["volumes"] if volume["name"] == "tmp")
        assert tmp["emptyDir"] == {"sizeLimit": size}
