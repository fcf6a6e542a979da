"""The chart in helm/, rendered by Helm's own library, for the tests of what it makes."""

from __future__ import annotations

import os
import tomllib
import typing
from collections.abc import Mapping
from functools import cache
from typing import cast

import kubernetes_validate
import pytest
import yaml

from node import config
from node.config import Settings
from tests.paths import REPOSITORY

CHART = REPOSITORY / "helm"
EXAMPLES = ("cpu", "gpu", "split")
ROLES = ("listener", "worker", "sender")
KUBERNETES = "1.34"
OF_OTHERS = ("monitoring.coreos.com", "keda.sh", "gateway.networking.k8s.io")
"""Groups of objects that Kubernetes' own schemas do not hold."""

Object = dict[str, typing.Any]

try:
    import helm_python as helm_python  # for the tests as well
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip("Helm's library has no wheel for this machine", allow_module_level=True)


def example(name: str) -> Object:
    """One of the chart's example files."""
    return cast(Object, yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text(encoding="utf-8")))


@cache
def made_of(name: str) -> list[Object]:
    """Every object that the chart makes of an example; not to be changed."""
    return rendered(example(name))


def rendered(values: Object) -> list[Object]:
    """Every object that the chart makes of values."""
    texts = helm_python.Chart.load(CHART).render(values, name="cxr", namespace="radiology", is_install=True)
    written = [text for path, text in texts.items() if not path.endswith("NOTES.txt")]
    return [manifest for text in written for manifest in yaml.load_all(text, Loader=yaml.CSafeLoader) if manifest]


def made(name: str, changes: Mapping[str, object]) -> list[Object]:
    """Every object of an example with changes; the chart's schema and those of Kubernetes must accept it all."""
    values = merged(example(name), changes)
    helm_python.Chart.load(CHART).validate_schema(values)
    objects = rendered(values)
    for manifest in objects:
        if manifest["apiVersion"].split("/")[0] not in OF_OTHERS:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    return objects


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [manifest for manifest in objects if manifest["kind"] == kind]


def the_only(objects: list[Object], kind: str) -> Object:
    """The one of its kind."""
    (found,) = of_kind(objects, kind)
    return found


def settings_of(objects: list[Object]) -> Settings:
    """What the node reads in the node.toml that is mounted."""
    (found,) = (each["data"] for each in of_kind(objects, "ConfigMap") if "node.toml" in each["data"])
    return config.parse(tomllib.loads(found["node.toml"]))


def part_of(manifest: Object) -> str | None:
    """The part of the work that an object is for."""
    return cast("str | None", manifest["metadata"]["labels"].get("app.kubernetes.io/component"))


def workloads(objects: list[Object]) -> dict[str | None, Object]:
    """What makes pods, by the part of the work that they do."""
    found = [*of_kind(objects, "StatefulSet"), *of_kind(objects, "Deployment")]
    return {part_of(workload["spec"]["template"]): workload for workload in found}


def policies(objects: list[Object]) -> dict[str, Object]:
    """What may enter and leave the pods of each part."""
    found = [policy["spec"] for policy in of_kind(objects, "NetworkPolicy")]
    return {spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: spec for spec in found}


def pod_of(workload: Object) -> Object:
    """The pod of a workload."""
    return cast(Object, workload["spec"]["template"]["spec"])


def container_of(workload: Object) -> Object:
    """The one container of its pod."""
    (container,) = pod_of(workload)["containers"]
    return cast(Object, container)


def merged(values: Object, changes: Mapping[str, object]) -> Object:
    """The values with changes put over them, as `helm install --set` does."""
    result = dict(values)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return result
