"""The ways into the chart's node: hosts of callers as the node takes them, browsers by Ingress or HTTPRoute."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from node.settings.rules import caller_host
from tests.deploy.chart import CHART, example, helm_python, made, merged, of_kind, rendered, settings_of, the_only

pytestmark = pytest.mark.drill(part="deployment")

CONTROLLER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}
USERS = {"password_file": "/etc/chex-tls/web/users"}
TLS = {"tls": {"certificate": "/etc/chex-tls/web/tls.crt", "key": "/etc/chex-tls/web/tls.key"}}
GATEWAY = {"name": "public", "namespace": "gateways", "sectionName": "https"}
PUBLISHED: Mapping[str, object] = {
    "settings": {"http": {**USERS, **TLS}},
    "tls": {"secrets": ["web"]},
    "pages": {"host": "chex.example.org", "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "seen"}},
    "networkPolicy": {"pagesFrom": [CONTROLLER]},
}
ROUTED: Mapping[str, object] = {
    **PUBLISHED,
    "pages": {"host": "chex.example.org", "route": {"enabled": True, "parentRefs": [GATEWAY]}},
}


def is_accepted(host: str) -> bool:
    """Whether the chart takes a host of a caller: by its schema, and by what it makes of it."""
    callers = [{"ae_title": "PACS", "hosts": [host]}]
    values = merged(example("cpu"), {"settings": {"listener": {"callers": callers}}})
    try:
        helm_python.Chart.load(CHART).validate_schema(values)
        rendered(values)
    except helm_python.HelmError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "is_good"),
    [
        ("10.0.0.5", True),
        ("10.0.0.5:104", False),
        ("300.1.1.1", False),
        ("10.0.0", False),
        ("010.0.0.5", False),
        ("fd00::5", True),
        ("::1", True),
        ("1:2:3:4:5:6:7:8", True),
        ("1:2:3:4:5:6:7:8:9", False),
        ("1::2::3", False),
        ("fd00::12345", False),
        ("[fd00::5]:104", False),
        ("10.20.0.0/16", True),
        ("0.0.0.0/0", True),
        ("10.20.0.5/24", False),
        ("10.20.0.128/24", False),
        ("10.20.0.0/33", False),
        ("10.20.0/24", False),
        ("fd00::/64", True),
        ("::/0", True),
        ("fd00::5/64", False),
        ("fd00::/129", False),
        ("pacs", False),
        ("pacs:104", False),
        ("*", False),
        ("pacs\n", False),
        ("", False),
    ],
)
def test_the_chart_takes_the_hosts_that_the_node_takes(host: str, is_good: bool) -> None:
    assert ((caller_host(host) is None), is_accepted(host)) == (is_good, is_good)


@pytest.mark.parametrize("host", ["10.0.0.0/255.255.255.0", "10.0.0.0/08", "::ffff:10.0.0.5", "fe80::5%eth0"])
def test_a_form_that_no_policy_can_have_is_refused(host: str) -> None:
    assert caller_host(host) is None, "the node alone takes it"
    assert not is_accepted(host)


@pytest.mark.parametrize(("name", "role"), [("cpu", "node"), ("split", "listener")])
def test_an_ingress_leads_to_the_pages_of_ready_pods(name: str, role: str) -> None:
    objects = made(name, PUBLISHED)
    ingress = the_only(objects, "Ingress")
    (service,) = (found for found in of_kind(objects, "Service") if found["metadata"]["name"] == "cxr-pages")

    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert rule["host"] == "chex.example.org"
    assert path["backend"] == {"service": {"name": "cxr-pages", "port": {"name": "http"}}}
    assert ingress["spec"]["tls"] == [{"hosts": ["chex.example.org"], "secretName": "seen"}]
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == role
    assert "publishNotReadyAddresses" not in service["spec"]
    assert service["spec"]["ports"][0]["appProtocol"] == "https"


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


@pytest.mark.parametrize("name", ["cpu", "split"])
def test_only_pods_with_pages_let_the_controller_in(name: str) -> None:
    policies = of_kind(made(name, PUBLISHED), "NetworkPolicy")

    let_in = [
        policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for policy in policies
        for rule in policy["spec"]["ingress"]
        if CONTROLLER in rule["from"]
    ]
    assert let_in == ["node" if name == "cpu" else "listener"]


def test_the_node_answers_to_the_name_beside_its_own() -> None:
    known = settings_of(made("cpu", PUBLISHED)).http
    twice = settings_of(made("cpu", merged(dict(PUBLISHED), {"settings": {"http": {"hosts": ["a", known.hosts[0]]}}})))

    assert (known.hosts, twice.http.hosts) == (("chex.example.org",), ("a", "chex.example.org"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"pages": {"host": ""}},
        {"pages": {"host": "chex example"}},
        {"pages": {"host": "https://chex"}},
        {"pages": {"ingress": {"name": "x"}}},
        {"networkPolicy": {"pagesFrom": []}},
        {"networkPolicy": {"pagesFrom": ["ingress-nginx"]}},
        {"pages": {"route": {"parentRefs": []}}},
    ],
)
def test_a_way_that_leads_nowhere_is_refused(wrong: Mapping[str, object]) -> None:
    way = ROUTED if "route" in str(wrong) else PUBLISHED
    with pytest.raises(helm_python.HelmValuesError):
        made("cpu", merged(dict(way), wrong))


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
        assert settings_of(made("cpu", changes)).http.knows_users
        return
    with pytest.raises(helm_python.HelmValuesError):
        made("cpu", changes)


def test_without_a_policy_pages_need_no_peers() -> None:
    assert of_kind(made("cpu", {**PUBLISHED, "networkPolicy": {"enabled": False}}), "Ingress")
