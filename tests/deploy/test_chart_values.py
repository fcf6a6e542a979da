"""What a platform team sets beside the node's own settings: where pods run, who they are, who reaches them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from node.config import ListenerSettings
from tests.deploy.chart import (
    CHART,
    ROLES,
    Object,
    container_of,
    example,
    helm_python,
    made,
    made_of,
    merged,
    of_kind,
    pod_of,
    rendered,
    settings_of,
    the_only,
    workloads,
)
from tests.support import peers
from tests.support.peers import LOOPBACK
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="deployment")

ARCHIVE = {"podSelector": {"matchLabels": {"app": "archive"}}}
DNS = ("any", 53)
DIGEST = "sha256:" + "0123456789abcdef" * 4
ZONES = [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}]
DISK = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
    {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}
]}}  # fmt: skip
PLACED: Mapping[str, object] = {
    "image": {"digest": DIGEST},
    "affinity": DISK,
    "topologySpreadConstraints": ZONES,
    "podAnnotations": {"example.org/team": "radiology"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "priorityClassName": "clinical",
    "serviceAccount": {"create": True, "annotations": {"example.org/role": "reader"}},
}


def test_a_pod_is_placed_and_named_as_the_values_say() -> None:
    objects = made("cpu", PLACED)
    (workload,) = workloads(objects).values()
    pod = pod_of(workload)

    assert container_of(workload)["image"] == f"registry.example.org/chex-node@{DIGEST}"
    assert (pod["affinity"], pod["topologySpreadConstraints"]) == (DISK, ZONES)
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "radiology-1"}
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("clinical", "cxr")
    assert workload["spec"]["template"]["metadata"]["annotations"]["example.org/team"] == "radiology"
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container_of(workload)["env"]
    assert the_only(objects, "ServiceAccount")["metadata"]["annotations"] == {"example.org/role": "reader"}
    assert not of_kind(made_of("cpu"), "ServiceAccount")


def test_a_pod_that_listens_drains_before_it_gets_sigterm() -> None:
    found = workloads(made("split", {"listener": {"drainSeconds": 12}}))

    command = container_of(found["listener"])["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["sleep", "12"]
    assert {role: pod_of(workload)["terminationGracePeriodSeconds"] for role, workload in found.items()} == {
        "listener": 52, "worker": 40, "sender": 40,
    }  # fmt: skip
    assert all("lifecycle" not in container_of(found[role]) for role in ("worker", "sender"))
    assert "lifecycle" not in container_of(workloads(made("cpu", {"listener": {"drainSeconds": 0}}))["node"])


NODES_OWN = ListenerSettings().max_object_mib


@pytest.mark.parametrize(
    ("most_mib", "limit", "fits"),
    [
        (None, f"{2 * NODES_OWN}Mi", True),
        (None, f"{2 * NODES_OWN - 1}Mi", False),
        (None, None, True),
        (2048, "4Gi", True),
        (2049, "4Gi", False),
        (2048, "4G", False),
        (2048, "4294967296", True),
        (2048, 4294967295, False),
        (2048, "4194303Ki", False),
        (2048, "4294967k", False),
        (2048, "4294967296000m", True),
        (512, "1.5Gi", True),
        (10**6, "1Ti", False),
        (512, "1", False),
    ],
)
def test_two_of_the_largest_objects_fit_a_pods_memory(
    most_mib: int | None, limit: str | int | None, fits: bool
) -> None:
    listener = {} if most_mib is None else {"max_object_mib": most_mib}
    values = merged(example("cpu"), {"settings": {"listener": listener}, "resources": {"limits": {"memory": limit}}})

    helm_python.Chart.load(CHART).validate_schema(values)
    if fits:
        assert workloads(rendered(values))
        return
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(values)
    assert f"settings.listener.max_object_mib: two objects of {most_mib or NODES_OWN} MiB do not fit" in str(
        refused.value
    )
    assert "resources.limits.memory" in str(refused.value)


@pytest.mark.parametrize("role", ROLES)
def test_every_part_shows_films_and_needs_memory_for_two(role: str) -> None:
    values = merged(example("split"), {role: {"resources": {"limits": {"memory": "4095Mi"}}}})

    with pytest.raises(helm_python.HelmError, match=rf"do not fit into {role}\.resources\.limits\.memory \(4095Mi\)"):
        rendered(values)


def test_workers_may_scale_to_zero_and_back() -> None:
    scaled = the_only(made("split", {"worker": {"replicas": 0}}), "ScaledObject")["spec"]
    by_hand = made("split", {"worker": {"replicas": 0}, "keda": {"enabled": False}})

    assert scaled["minReplicaCount"] == 0
    assert "'quiet'" in scaled["triggers"][0]["metadata"]["query"], "without a worker no study gets further"
    assert workloads(by_hand)["worker"]["spec"]["replicas"] == 0


def test_networks_and_other_peers_are_let_in() -> None:
    callers = [{"ae_title": "CR", "hosts": ["10.30.0.0/16", "fd00::/64", "10.40.0.5"]}]
    hospital = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    objects = made(
        "cpu", {"settings": {"listener": {"callers": callers}}, "networkPolicy": {"callersFrom": [hospital]}}
    )

    (dicom,) = (
        rule for rule in the_only(objects, "NetworkPolicy")["spec"]["ingress"] if {"port": "dicom"} in rule["ports"]
    )
    blocks = [peer["ipBlock"]["cidr"] for peer in dicom["from"] if "ipBlock" in peer]
    assert blocks == ["10.30.0.0/16", "fd00::/64", "10.40.0.5/32", "10.0.0.0/8"]


def test_a_policy_opens_the_ports_of_pods_behind_a_service() -> None:
    objects = made("split", {"networkPolicy": {"egressPorts": [11112, 5433], "egressTo": [ARCHIVE]}})

    for way in ways_out(objects).values():
        assert {("pods", 11112), ("pods", 5433)} <= way
    with pytest.raises(helm_python.HelmError, match=r"egressPorts: say in networkPolicy\.egressTo"):
        rendered(merged(example("cpu"), {"networkPolicy": {"egressPorts": [11112], "egressTo": []}}))


PEERS: Mapping[str, object] = {
    "destinations": [
        {"name": "pacs", "ae_title": "PACS", "host": "10.20.0.5", "port": 104},
        {"name": "ris", "type": "hl7", "host": "fd00::9", "port": 2576},
        {"name": "web", "type": "dicomweb", "url": "https://10.20.0.7/dicom-web"},
        {"name": "web6", "type": "dicomweb", "url": "http://[fd00::5]:8042/dicom-web"},
        {"name": "plain", "type": "dicomweb", "url": "http://10.20.0.8/dicom-web"},
    ],
    "alerts": {"webhook": {"url": "http://10.20.0.9:4318/hook"}},
    "notify": [{"name": "ward", "pages": "https://chex.example", "url": "https://10.20.0.11/hook"}],
    "http": {
        "oidc": {
            "issuer": "https://10.20.0.10:8443/realms/hospital",
            "client_id": "chex-node",
            "client_secret_file": "/etc/chex-tls/sso/secret",
            "reader_groups": ["radiology"],
        },
        "tls": {"certificate": "/etc/chex-tls/web/tls.crt", "key": "/etc/chex-tls/web/tls.key"},
    },
}


def test_each_peer_is_let_out_to_its_own_address_alone() -> None:
    watched = {("10.20.0.9/32", 4318), ("10.20.0.10/32", 8443), ("10.20.0.11/32", 443)}
    sent = {("10.20.0.5/32", 104), ("fd00::9/128", 2576), ("10.20.0.7/32", 443), ("fd00::5/128", 8042)}
    sent |= {("10.20.0.8/32", 80)}

    split = made("split", {"settings": PEERS, "database": {"host": "10.20.0.6"}, "networkPolicy": {"egressTo": []}})
    single = made("cpu", {"settings": PEERS, "networkPolicy": {"egressTo": []}})

    assert [each.name for each in settings_of(single).notify] == ["ward"]
    common = {DNS, ("10.20.0.6/32", 5432)} | watched
    assert ways_out(split) == {"listener": common, "worker": common, "sender": common | sent}
    assert ways_out(single) == {"node": {DNS} | watched | sent}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("cpu", {"destinations": [{"name": "p", "ae_title": "P", "host": "pacs", "port": 4}]}, "destinations: pacs"),
        ("cpu", {"destinations": [{"name": "r", "type": "hl7", "host": "ris", "port": 1}]}, "destinations: ris"),
        ("cpu", {"destinations": [{"name": "w", "type": "dicomweb", "url": "http://web:1/x"}]}, "destinations: web"),
        ("cpu", {"alerts": {"webhook": {"url": "https://chat/1"}}}, "settings.alerts.webhook: chat"),
        ("split", {}, "database: postgres.example.org"),
    ],
)
def test_a_peer_that_is_a_name_needs_a_word_where_it_is(name: str, changes: Object, said: str) -> None:
    numbered = {"destinations": [], **changes}
    values = merged(example(name), {"settings": numbered, "networkPolicy": {"egressTo": []}})

    helm_python.Chart.load(CHART).validate_schema(values)
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(values)

    assert f"{said} is a name, which a NetworkPolicy cannot know" in str(refused.value)
    assert "networkPolicy.egressTo" in str(refused.value)
    assert rendered(merged(values, {"networkPolicy": {"egressTo": [ARCHIVE]}}))
    assert not of_kind(rendered(merged(values, {"networkPolicy": {"enabled": False}})), "NetworkPolicy")


def test_without_a_peer_only_names_are_looked_up() -> None:
    objects = made("cpu", {"settings": {"destinations": []}})

    assert ways_out(objects) == {"node": {DNS}}


def ways_out(objects: list[Object]) -> dict[str, set[tuple[str, int]]]:
    """Where each part may go: network and port, `pods` for peers by their labels, `any` for everywhere."""
    found: dict[str, set[tuple[str, int]]] = {}
    for policy in of_kind(objects, "NetworkPolicy"):
        role = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        found[role] = {
            (peer["ipBlock"]["cidr"] if "ipBlock" in peer else "pods" if peer else "any", port["port"])
            for rule in policy["spec"]["egress"]
            for peer in rule.get("to") or [{}]
            for port in rule.get("ports") or [{"port": 0}]
        }
    return found


def test_the_pod_of_helm_test_is_let_in_and_found_by_no_service() -> None:
    objects = made("gpu", {})
    pod = the_only(objects, "Pod")

    labels = pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    for service in of_kind(objects, "Service"):
        assert not service["spec"]["selector"].items() <= labels.items()
    for port in ("dicom", "http"):
        (rule,) = (r for r in the_only(objects, "NetworkPolicy")["spec"]["ingress"] if {"port": port} in r["ports"])
        assert {"podSelector": {"matchLabels": labels}} in rule["from"]
    script, http, host, number, called, calling = pod["spec"]["containers"][0]["args"]
    assert script == (CHART / "files" / "connection.py").read_text(encoding="utf-8")
    assert (http, host, number, called, calling) == ("https://cxr-http:8080", "cxr", "11112", "CHEX", "HELM-TEST")


def test_the_script_of_helm_test_runs_against_a_node(tmp_path: Path) -> None:
    command = the_only(made_of("cpu"), "Pod")["spec"]["containers"][0]
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port(), callers=("HELM-TEST",))

    def tested(http_port: int, dicom_port: int, *titles: str) -> subprocess.CompletedProcess[str]:
        arguments = [f"http://{LOOPBACK}:{http_port}", LOOPBACK, str(dicom_port), *titles]
        python = [sys.executable, *command["command"][1:], command["args"][0]]
        return subprocess.run([*python, *arguments], capture_output=True, text=True, timeout=60)

    with Service(settings) as node:
        good = tested(node.http_port, node.dicom_port, "CHEX", "HELM-TEST")
        stranger = tested(node.http_port, node.dicom_port, "CHEX", "STRANGER")
        wrong = tested(node.http_port, node.dicom_port, "OTHER", "HELM-TEST")
        assert node.stop() == 0
    gone = tested(node.http_port, node.dicom_port, "CHEX", "HELM-TEST")

    assert (good.returncode, good.stdout) == (0, "ready: good\ndicom: good\n"), good.stderr
    assert (stranger.returncode, "STRANGER is no caller" in stranger.stdout) == (0, True)
    assert (wrong.returncode, "dicom: refused (1, 7)" in wrong.stdout) == (1, True)
    assert (gone.returncode, "dicom: no association" in gone.stdout) == (1, True)
