"""What a platform team sets beside the node's own settings: where pods run, who they are, who reaches them and how."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from node.config import ListenerSettings
from node.settings.rules import caller_host
from tests.deploy import chart
from tests.deploy.chart import CHART, ROLES, Object, example, helm_python, made, merged, of_kind, rendered, the_only
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
    (workload,) = chart.workloads(objects).values()
    pod = chart.pod_of(workload)

    assert chart.container_of(workload)["image"] == f"registry.example.org/chex-node@{DIGEST}"
    assert (pod["affinity"], pod["topologySpreadConstraints"]) == (DISK, ZONES)
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "radiology-1"}
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("clinical", "cxr")
    assert workload["spec"]["template"]["metadata"]["annotations"]["example.org/team"] == "radiology"
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in chart.container_of(workload)["env"]
    assert the_only(objects, "ServiceAccount")["metadata"]["annotations"] == {"example.org/role": "reader"}
    assert not of_kind(chart.made_of("cpu"), "ServiceAccount")


def test_a_pod_that_listens_drains_before_it_gets_sigterm() -> None:
    found = chart.workloads(made("split", {"listener": {"drainSeconds": 12}}))

    command = chart.container_of(found["listener"])["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["sleep", "12"]
    assert {role: chart.pod_of(workload)["terminationGracePeriodSeconds"] for role, workload in found.items()} == {
        "listener": 52, "worker": 40, "sender": 40,
    }  # fmt: skip
    assert all("lifecycle" not in chart.container_of(found[role]) for role in ("worker", "sender"))
    assert "lifecycle" not in chart.container_of(
        chart.workloads(made("cpu", {"listener": {"drainSeconds": 0}}))["node"]
    )


NODES_OWN = ListenerSettings().max_object_mib


@pytest.mark.parametrize(
    ("most_mib", "limit", "fits"),
    [
        (None, f"{2 * NODES_OWN}Mi", True),
        (None, f"{2 * NODES_OWN - 1}Mi", False),
        (None, None, True),
        (2048, "4Gi", True),
        (2049, "4Gi", False),
        (2048, 4294967295, False),
        (2048, "4194303Ki", False),
        (2048, "4294967k", False),
        (2048, "4294967296000m", True),
        (512, "1.5Gi", True),
    ],
)
def test_two_of_the_largest_objects_fit_into_memory(most_mib: int | None, limit: str | int | None, fits: bool) -> None:
    listener = {} if most_mib is None else {"max_object_mib": most_mib}
    values = merged(example("cpu"), {"settings": {"listener": listener}, "resources": {"limits": {"memory": limit}}})

    helm_python.Chart.load(CHART).validate_schema(values)
    if fits:
        assert chart.workloads(rendered(values))
        return
    said = rf"max_object_mib: two objects of {most_mib or NODES_OWN} MiB do not fit .*resources\.limits\.memory"
    with pytest.raises(helm_python.HelmError, match=said):
        rendered(values)


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
    assert chart.workloads(by_hand)["worker"]["spec"]["replicas"] == 0


def test_networks_and_other_peers_are_let_in() -> None:
    callers = [{"ae_title": "CR", "hosts": ["10.30.0.0/16", "fd00::/64", "10.40.0.5"]}]
    policy = {"callersFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    objects = made("cpu", {"settings": {"listener": {"callers": callers}}, "networkPolicy": policy})

    let_in = entering(chart.policies(objects)["node"], "dicom")
    blocks = [peer["ipBlock"]["cidr"] for peer in let_in if "ipBlock" in peer]
    assert blocks == ["10.30.0.0/16", "fd00::/64", "10.40.0.5/32", "10.0.0.0/8"]


def test_a_policy_opens_the_ports_of_pods_behind_a_service_and_of_the_resolver_that_the_values_name() -> None:
    policy = {"egressPorts": [11112, 5433], "egressTo": [ARCHIVE], "dnsTo": [ARCHIVE]}

    for way in ways_out(made("split", {"networkPolicy": policy})).values():
        assert way >= {("pods", 11112), ("pods", 5433), ("pods", 53)}
        assert DNS not in way
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


def test_each_peer_is_let_out_to_its_own_address_alone_and_without_one_only_names_are_looked_up() -> None:
    watched = {("10.20.0.9/32", 4318), ("10.20.0.10/32", 8443), ("10.20.0.11/32", 443)}
    sent = {("10.20.0.5/32", 104), ("fd00::9/128", 2576), ("10.20.0.7/32", 443), ("fd00::5/128", 8042)}
    sent |= {("10.20.0.8/32", 80)}

    split = made("split", {"settings": PEERS, "database": {"host": "10.20.0.6"}, "networkPolicy": {"egressTo": []}})
    single = made("cpu", {"settings": PEERS, "networkPolicy": {"egressTo": []}})

    assert [each.name for each in chart.settings_of(single).notify] == ["ward"]
    common = {DNS, ("10.20.0.6/32", 5432)} | watched
    assert ways_out(split) == {"listener": common, "worker": common, "sender": common | sent}
    assert ways_out(single) == {"node": {DNS} | watched | sent}
    assert ways_out(made("cpu", {"settings": {"destinations": []}})) == {"node": {DNS}}


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


def ways_out(objects: list[Object]) -> dict[str, set[tuple[str, int]]]:
    """Where each part may go: network and port, `pods` for peers by their labels, `any` for everywhere."""
    return {
        role: {
            (peer["ipBlock"]["cidr"] if "ipBlock" in peer else "pods" if peer else "any", port["port"])
            for rule in spec["egress"]
            for peer in rule.get("to") or [{}]
            for port in rule.get("ports") or [{"port": 0}]
        }
        for role, spec in chart.policies(objects).items()
    }


def entering(spec: Object, port: str) -> list[Object]:
    """Who a policy lets in by a port."""
    (rule,) = (rule for rule in spec["ingress"] if {"port": port} in rule["ports"])
    return cast("list[Object]", rule["from"])


def test_the_pod_of_helm_test_is_let_in_and_found_by_no_service() -> None:
    objects = made("gpu", {})
    pod = the_only(objects, "Pod")

    labels = pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    for service in of_kind(objects, "Service"):
        assert not service["spec"]["selector"].items() <= labels.items()
    for port in ("dicom", "http"):
        assert {"podSelector": {"matchLabels": labels}} in entering(chart.policies(objects)["node"], port)
    script, *arguments = pod["spec"]["containers"][0]["args"]
    assert script == (CHART / "files" / "connection.py").read_text(encoding="utf-8")
    assert arguments == ["https://cxr-http:8080", "cxr", "11112", "CHEX", "HELM-TEST"]


def test_the_script_of_helm_test_runs_against_a_node(tmp_path: Path) -> None:
    command = the_only(chart.made_of("cpu"), "Pod")["spec"]["containers"][0]
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


CONTROLLER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}
USERS = {"password_file": "/etc/chex-tls/web/users"}
TLS = {"tls": {"certificate": "/etc/chex-tls/web/tls.crt", "key": "/etc/chex-tls/web/tls.key"}}
GATEWAY = {"name": "public", "namespace": "gateways", "sectionName": "https"}
PUBLISHED: Object = {
    "settings": {"http": {**USERS, **TLS}},
    "tls": {"secrets": ["web"]},
    "pages": {"host": "chex.example.org", "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "seen"}},
    "networkPolicy": {"pagesFrom": [CONTROLLER]},
}
ROUTED: Object = {
    **PUBLISHED,
    "pages": {"host": "chex.example.org", "route": {"enabled": True, "parentRefs": [GATEWAY]}},
}


def is_accepted(host: str) -> bool:
    """Whether the chart takes a host of a caller: by its schema, and by what it makes of it."""
    callers = [{"ae_title": "PACS", "hosts": [host]}]
    try:
        made("cpu", {"settings": {"listener": {"callers": callers}}})
    except helm_python.HelmError:
        return False
    return True


GOOD = ["10.0.0.5", "fd00::5", "::1", "1:2:3:4:5:6:7:8", "10.20.0.0/16", "0.0.0.0/0", "fd00::/64", "::/0"]
BAD = [
    *("10.0.0.5:104", "300.1.1.1", "10.0.0", "010.0.0.5", "1:2:3:4:5:6:7:8:9", "1::2::3", "fd00::12345"),
    *("[fd00::5]:104", "10.20.0.5/24", "10.20.0.128/24", "10.20.0.0/33", "10.20.0/24", "fd00::5/64", "fd00::/129"),
    *("pacs", "pacs:104", "*", "pacs\n", ""),
]
THAT_NO_POLICY_CAN_HAVE = ["10.0.0.0/255.255.255.0", "10.0.0.0/08", "::ffff:10.0.0.5", "fe80::5%eth0"]


@pytest.mark.parametrize("host", [*GOOD, *BAD, *THAT_NO_POLICY_CAN_HAVE])
def test_the_chart_takes_the_hosts_that_the_node_takes_and_a_policy_can_have(host: str) -> None:
    assert ((caller_host(host) is None), is_accepted(host)) == (host not in BAD, host in GOOD)


@pytest.mark.parametrize(("name", "role"), [("cpu", "node"), ("split", "listener")])
def test_an_ingress_leads_to_the_pages_of_ready_pods_which_let_the_controller_in(name: str, role: str) -> None:
    objects = made(name, PUBLISHED)
    ingress = the_only(objects, "Ingress")["spec"]
    (service,) = (found["spec"] for found in of_kind(objects, "Service") if found["metadata"]["name"] == "cxr-pages")

    (rule,) = ingress["rules"]
    (path,) = rule["http"]["paths"]
    assert rule["host"] == "chex.example.org"
    assert path["backend"] == {"service": {"name": "cxr-pages", "port": {"name": "http"}}}
    assert ingress["tls"] == [{"hosts": ["chex.example.org"], "secretName": "seen"}]
    assert ingress["ingressClassName"] == "nginx"
    assert service["selector"]["app.kubernetes.io/component"] == role
    assert "publishNotReadyAddresses" not in service
    assert service["ports"][0]["appProtocol"] == "https"
    assert [part for part, spec in chart.policies(objects).items() if CONTROLLER in entering(spec, "http")] == [role]
    assert of_kind(made(name, {**PUBLISHED, "networkPolicy": {"enabled": False}}), "Ingress"), (
        "without a policy as well"
    )


def test_a_route_leads_from_a_gateway_to_the_pages() -> None:
    objects = made("cpu", ROUTED)
    route = the_only(objects, "HTTPRoute")

    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert route["spec"] == {
        "parentRefs": [GATEWAY],
        "hostnames": ["chex.example.org"],
        "rules": [{"backendRefs": [{"name": "cxr-pages", "port": 8080}]}],
    }
    assert not of_kind(objects, "Ingress")
    assert not of_kind(made("cpu", {}), "HTTPRoute")


def test_the_node_answers_to_the_name_beside_its_own() -> None:
    known = chart.settings_of(made("cpu", PUBLISHED)).http
    twice = chart.settings_of(made("cpu", merged(PUBLISHED, {"settings": {"http": {"hosts": ["a", known.hosts[0]]}}})))

    assert (known.hosts, twice.http.hosts) == (("chex.example.org",), ("a", "chex.example.org"))


@pytest.mark.parametrize(
    ("way", "wrong"),
    [
        (PUBLISHED, {"pages": {"host": ""}}),
        (PUBLISHED, {"pages": {"host": "chex example"}}),
        (PUBLISHED, {"pages": {"host": "https://chex"}}),
        (PUBLISHED, {"pages": {"ingress": {"name": "x"}}}),
        (PUBLISHED, {"networkPolicy": {"pagesFrom": []}}),
        (PUBLISHED, {"networkPolicy": {"pagesFrom": ["ingress-nginx"]}}),
        (ROUTED, {"pages": {"route": {"parentRefs": []}}}),
    ],
)
def test_a_way_that_leads_nowhere_is_refused(way: Object, wrong: Object) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        made("cpu", merged(way, wrong))


@pytest.mark.parametrize(
    ("http", "is_good"),
    [
        ({}, False),
        (USERS, False),
        (TLS, False),
        ({**USERS, **TLS}, True),
        ({**USERS, "trusted_proxy": ["10.20.0.3"]}, True),
        ({"user_header": "X-Remote-User"}, False),
        ({"user_header": "X-Remote-User", "trusted_proxy": ["10.20.0.3"]}, True),
        ({"user_header": "X-Remote-User", "trusted_proxy": ["300.1.1.1"]}, False),
    ],
)
def test_pages_are_published_only_with_users(http: Mapping[str, object], is_good: bool) -> None:
    changes = {**PUBLISHED, "settings": {"http": http}}
    if is_good:
        assert chart.settings_of(made("cpu", changes)).http.knows_users
        return
    with pytest.raises(helm_python.HelmValuesError):
        made("cpu", changes)
