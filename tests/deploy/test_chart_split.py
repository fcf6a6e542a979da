"""The chart with `mode: split`: listeners, workers and senders as pods of their own, each with what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy

from node.__main__ import main
from tests.deploy.chart import (
    ROLES,
    container_of,
    example,
    made_of,
    merged,
    of_kind,
    rendered,
    settings_of,
    the_only,
    workloads,
)

pytestmark = pytest.mark.drill(part="deployment")


def test_on_many_machines_each_part_runs_under_its_pods_name() -> None:
    objects = made_of("split")
    found = workloads(objects)

    assert set(found) == set(ROLES)
    for role, workload in found.items():
        container = container_of(workload)
        environment = {
            variable["name"]: variable.get("valueFrom", variable.get("value")) for variable in container["env"]
        }
        assert container["args"] == ["serve", "/etc/chex-node/node.toml", "--only", role, "--executor", "$(POD_NAME)"]
        assert environment["ORT_DISABLE_TELEMETRY"] == "1"
        assert environment["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        assert environment["PGPASSWORD"] == {"secretKeyRef": {"name": "chex-postgres", "key": "password"}}
    assert {role: workload["kind"] for role, workload in found.items()} == {
        "listener": "Deployment", "worker": "StatefulSet", "sender": "StatefulSet",
    }  # fmt: skip
    assert the_only(objects, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("role", ROLES)
def test_the_program_knows_the_arguments_of_every_part(
    role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = container_of(workloads(made_of("split"))[role])["args"]
    missing = str(tmp_path / "missing.toml")

    assert main([missing if argument == "/etc/chex-node/node.toml" else argument for argument in arguments]) == 2
    assert "missing.toml: cannot be read" in capsys.readouterr().err  # and no word of an argument


def test_no_password_is_in_a_setting() -> None:
    objects = made_of("split")

    url = settings_of(objects).storage.database_url
    assert url == (
        "postgresql://chex@postgres.example.org:5432/chex?sslmode=verify-full"
        "&sslrootcert=/etc/chex-tls/chex-database/ca.crt"
    )
    assert sqlalchemy.make_url(url).password is None


def test_listeners_scale_with_load_and_workers_with_the_queue() -> None:
    objects = made_of("split")
    found = workloads(objects)

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


def test_without_autoscaling_every_number_is_what_the_values_say() -> None:
    values = merged(example("split"), {"keda": {"enabled": False}, "listener": {"autoscaling": {"enabled": False}}})

    objects = rendered(values)

    numbers = {role: workload["spec"]["replicas"] for role, workload in workloads(objects).items()}
    assert numbers == {"listener": 3, "worker": 2, "sender": 2}
    assert not of_kind(objects, "HorizontalPodAutoscaler") + of_kind(objects, "ScaledObject")


def test_every_part_goes_out_only_where_it_has_to() -> None:
    objects = made_of("split")
    destinations = {destination.port for destination in settings_of(objects).destinations}

    allowed: dict[str, set[int]] = {}
    entered: dict[str, set[str]] = {}
    for policy in of_kind(objects, "NetworkPolicy"):
        role, spec = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"], policy["spec"]
        allowed[role] = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
        entered[role] = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
    assert allowed == {"listener": {53, 5432}, "worker": {53, 5432}, "sender": {53, 5432, *destinations}}
    assert entered == {"listener": {"dicom", "dicom-tls", "orders", "http"}, "worker": {"http"}, "sender": {"http"}}


def test_a_drained_machine_never_takes_the_last_listener() -> None:
    budgets = of_kind(made_of("split"), "PodDisruptionBudget")

    found = {budget["metadata"]["labels"]["app.kubernetes.io/component"]: budget["spec"] for budget in budgets}
    assert {role: spec.get("minAvailable") for role, spec in found.items()} == {
        "listener": 1, "worker": None, "sender": None,
    }  # fmt: skip
    assert [found[role]["maxUnavailable"] for role in ("worker", "sender")] == [1, 1]
