"""Runnable: looks up what the images are made of, so that a build takes these bytes and no others.

    python -m deploy.supply.digests [--out FOLDER]      `make digests`; TORCH_INDEX in the environment, as for the build

It needs the registries of the images (without a login), and the package index, and writes into deploy/image:

    digests.env        BASE_IMAGE, DEBIAN_IMAGE, PROMETHEUS_TAG and GRAFANA_TAG, each with its tag and its digest: for
                       `docker compose --env-file` and `docker build --build-arg`
    cpu.txt, gpu.txt   the packages of the two images, with hashes; with build.txt, which builds the program
                       the Dockerfile then lets pip take nothing else

An argument that is set in the environment (GRAFANA_TAG=...) is looked up instead of its default. Nothing is written
unless everything was looked up. The digest is that of the list of platforms, where an image has one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from deploy.supply import NotLookedUp, one_line
from deploy.supply.packages import hashed, hashed_backend
from node import VERSION_LINE

REPOSITORY: Final = Path(__file__).parents[2]

_BASE = re.compile(r"^ARG (\w+_IMAGE)=(\S+)$", re.MULTILINE)
_SERVICE = re.compile(r"^ +image: (\S+:)\$\{(\w+_TAG):-(\S+)\}$", re.MULTILINE)
_REFERENCE = re.compile(r"(?P<repository>[^\s@:]+(?::\d+/[^\s@:]+)?)(?::(?P<tag>[\w.-]+))?")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_HASHED = "# Written by `make digests`: what pip may take, and nothing else.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An argument that chooses an image.

    before: what the file itself puts before the argument's value, as `grafana/grafana:`
    """

    argument: str
    before: str
    value: str


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status: 2 where something could not be looked up."""
    parser = argparse.ArgumentParser(prog="python -m deploy.supply.digests", description="Look up digests and hashes.")
    parser.add_argument("--version", action="version", version=VERSION_LINE)
    parser.add_argument("--project", type=Path, default=REPOSITORY, help="the repository")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: deploy/image of the repository")
    options = parser.parse_args(arguments)
    project: Path = options.project
    out: Path = options.out or project / "deploy" / "image"
    try:
        files = looked_up(project, os.environ)
    except NotLookedUp as error:
        print(
            f"nothing was written: {error}; this command needs the registries of the images and the package index",
            file=sys.stderr,
        )
        return 2
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    print(files["digests.env"], end="")
    print(f"written into {out}: {', '.join(files)}")
    return 0


def looked_up(project: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each file by its name. Raises NotLookedUp."""
    lines = ["# Written by `make digests`: these tags, as their registries had them."]
    with httpx.Client(follow_redirects=True, timeout=30) as client:
        for image in images(project, environment):
            lines.append(f"{image.argument}={image.value}@{digest_of(image.before + image.value, client)}")
    torch_index = environment.get("TORCH_INDEX", "")
    packages = {f"{extra}.txt": hashed(project, extra, torch_index=torch_index) for extra in ("cpu", "gpu")}
    packages["build.txt"] = hashed_backend(project)
    return {"digests.env": "\n".join(lines) + "\n", **{name: _HASHED + text for name, text in packages.items()}}


def images(project: Path, environment: Mapping[str, str]) -> list[Image]:
    """List the images that the Dockerfiles and compose.yaml name, or the environment in their place."""
    dockerfiles = ("Dockerfile", "deploy/compose/orthanc.Dockerfile")
    found = [
        Image(argument=argument, before="", value=value)
        for name in dockerfiles
        for argument, value in _BASE.findall((project / name).read_text(encoding="utf-8"))
    ]
    services = (project / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    found += [Image(argument=arg, before=before, value=tag) for before, arg, tag in _SERVICE.findall(services)]
    return [
        Image(
            argument=image.argument,
            before=image.before,
            value=(environment.get(image.argument) or image.value).partition("@")[0],
        )
        for image in found
    ]


def digest_of(reference: str, client: httpx.Client) -> str:
    """Return the digest of the manifest that a registry has under a tag, computed from the manifest's bytes.

    Raises NotLookedUp if there is none, or if the registry says another digest of it.
    """
    host, repository, tag = _located(reference)
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"  # as docker does
    address = f"{scheme}://{host}/v2/{repository}/manifests/{tag}"
    try:
        answer = client.get(address, headers={"Accept": _MANIFESTS})
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            token = _token(answer.headers.get("WWW-Authenticate", ""), client)
            answer = client.get(address, headers={"Accept": _MANIFESTS, "Authorization": f"Bearer {token}"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NotLookedUp(f"{host} cannot be reached for {reference} ({one_line(error)})") from error
    if answer.status_code != httpx.codes.OK or not _is_manifest(answer.content):
        raise NotLookedUp(f"{host} answered {answer.status_code} and no manifest for {reference}")
    digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
    said = answer.headers.get("Docker-Content-Digest", digest)
    if said != digest:
        raise NotLookedUp(f"{host} said {one_line(said)} of {reference}, and its bytes have {digest}")
    return digest


def _located(reference: str) -> tuple[str, str, str]:
    """Split a reference into registry, repository and tag, as docker does: without a registry it is Docker Hub's."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise NotLookedUp(f"{one_line(reference)} names no image")
    first, slash, rest = parts["repository"].partition("/")
    tag = parts["tag"] or "latest"
    if slash and (first == "localhost" or "." in first or ":" in first):
        return ("registry-1.docker.io" if first == "docker.io" else first), rest, tag
    return "registry-1.docker.io", parts["repository"] if slash else f"library/{first}", tag


def _token(challenge: str, client: httpx.Client) -> str:
    """Get the token that a registry gives to everybody. Raises NotLookedUp, or httpx.HTTPError."""
    asked = dict(_CHALLENGE.findall(challenge))
    if not challenge.startswith("Bearer ") or "realm" not in asked:
        raise NotLookedUp("the registry asks for a login, and this command has none")
    answer = client.get(asked.pop("realm"), params=asked)
    try:
        content = answer.json()
        return str(content.get("token") or content["access_token"])
    except (ValueError, KeyError, AttributeError) as error:
        raise NotLookedUp("the registry gives no token without a login") from error


def _is_manifest(content: bytes) -> bool:
    """Whether bytes are a manifest, and not the page of a proxy, whose digest would be one of nothing."""
    try:
        return bool(json.loads(content)["schemaVersion"] == 2)
    except (ValueError, KeyError, TypeError):
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
