#!/bin/sh
# Builds the images of compose.yaml and runs them as it does: another user than root, a read-only root file system, no
# capabilities; but each without a network. Waits until the node's health check is content and lets it read a film.
# Removes what it made.
#
#   make container-test       needs root and Debian's buildah, podman, runc and debootstrap; minutes, 8 GB of disk
#
# A Debian that debootstrap makes stands in for the public base image. It takes this machine's package settings along
# (certificates, pip.conf; wheels below PIP_FIND_LINKS), since a build has the same registries as its machine.
#
# MIRROR       where debootstrap gets Debian from
# TORCH_INDEX  a package index with CPU builds of torch
# PYTHON       with pydicom-data, which has the film
set -eu

MIRROR=${MIRROR:-http://deb.debian.org/debian}
PYTHON=${PYTHON:-.venv/bin/python}
repository=$(cd "$(dirname "$0")/.." && pwd)
film=$(cd "$repository" && "$PYTHON" -c 'from pydicom.data import get_testdata_file as film; print(film("RG1_UNCR.dcm", download=False))')

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }
fail() {
    echo "$*" >&2
    exit 1
}

# shellcheck source=tests/container-clean-up.sh
. "$repository/tests/container-clean-up.sh"
work=$(cd "$(mktemp -d)" && pwd -P) # as findmnt names it
case $work in
*[!a-zA-Z0-9/._-]*) fail "$work has characters that cannot be looked for among mounts; choose another TMPDIR" ;;
esac
store="--root $work/storage --runroot $work/run"
# shellcheck disable=SC2086  # store is a list of words
in_store() {
    program=$1
    shift
    "$program" $store "$@"
}
pod() { in_store podman --cgroup-manager cgroupfs --runtime runc "$@"; }
clean_up() {
    status=$?
    pod rm --all --force --time 0 >/dev/null 2>&1 || true
    remove_tree "$work" || status=1
    exit "$status"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

say "making the stand-in for the base image"
debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates bookworm "$work/base" "$MIRROR" >"$work/log" 2>&1 ||
    fail "$(tail "$work/log")"
cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/ca-certificates.crt"
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$work/base/etc/pip.conf"
unmount_below "$work/base" || exit 1 # debootstrap leaves proc there
tar --one-file-system -C "$work/base" -cf "$work/base.tar" . || fail "the stand-in cannot be packed"
remove_tree "$work/base"
pod import "$work/base.tar" localhost/base:latest >/dev/null
rm "$work/base.tar"

say "building"
wheels=
[ -z "${PIP_FIND_LINKS:-}" ] || wheels="--volume $PIP_FIND_LINKS:$PIP_FIND_LINKS:ro --env PIP_FIND_LINKS=$PIP_FIND_LINKS"
# shellcheck disable=SC2086  # a list of words
in_store buildah bud --isolation chroot --network host --format docker --layers=false $wheels \
    --target cpu --build-arg BASE_IMAGE=localhost/base:latest --build-arg TORCH_INDEX="${TORCH_INDEX:-}" \
    --tag localhost/chex-node:cpu "$repository"

in_store buildah bud --isolation chroot --network host --format docker --layers=false \
    --build-arg DEBIAN_IMAGE=localhost/base:latest --tag localhost/orthanc \
    --file "$repository/deploy/compose/orthanc.Dockerfile" "$repository/deploy/compose"

# The two limits are named because podman's own are above what a machine in a machine may set; checks have no timer
# because that is systemd's.
run() {
    pod run --network none --read-only --tmpfs /tmp --cap-drop all --security-opt no-new-privileges \
        --ulimit nofile=1024:4096 --ulimit nproc=1024:1024 --health-interval disable "$@"
}

say "reading a film"
run --rm --volume "$film:/film.dcm:ro" localhost/chex-node:cpu \
    read /film.dcm --model models/weights/phantom --out /tmp/out

say "serving"
serve=$("$PYTHON" -c 'import sys, yaml; print(*yaml.safe_load(sys.stdin)["services"]["node"]["command"])' \
    <"$repository/deploy/compose.yaml")
run --detach --name node --volume node:/var/lib/chex-node --entrypoint '["sh", "-c"]' \
    --volume "$repository/deploy/compose/node.toml:/etc/chex-node/node.toml:ro" localhost/chex-node:cpu "$serve" >/dev/null
began=$(date +%s)
until pod healthcheck run node >/dev/null 2>&1; do
    [ $(($(date +%s) - began)) -lt 120 ] || fail "$(pod logs node 2>&1)"
    sleep 1
done
say "ready after $(($(date +%s) - began)) s"

inside() { pod exec node "$@"; }
[ "$(inside id -u)" = 10001 ] || fail "it does not run as user 10001"
! inside touch /opt/chex-node/written 2>/dev/null || fail "its root file system can be written"
for program in gcc cc g++ ld make; do
    ! inside sh -c "command -v $program" >/dev/null || fail "the image has $program"
done
! inside python -c 'import pip' 2>/dev/null || fail "the environment has pip"
echo "correct horse battery" | pod exec --interactive node python -m node password /var/lib/chex-node/users ada ||
    fail "no user can be added"
inside python -c 'import urllib.request as r; r.urlopen("http://127.0.0.1:8080/login")' || fail "nobody can sign in"
pod stop --time 40 node >/dev/null
pod logs node | grep -q service.stopped || fail "it did not stop in good order"

say "starting the archive"
run --detach --name orthanc --volume orthanc:/var/lib/orthanc \
    --volume "$repository/deploy/compose/orthanc.json:/etc/chex-node/orthanc.json:ro" \
    --volume "$repository/deploy/orthanc/route.lua:/etc/chex-node/route.lua:ro" localhost/orthanc >/dev/null
began=$(date +%s)
until pod exec orthanc bash -c 'exec 3<>/dev/tcp/127.0.0.1/8042' 2>/dev/null; do
    [ $(($(date +%s) - began)) -lt 60 ] || fail "$(pod logs orthanc 2>&1)"
    sleep 1
done
say "passed; the node's image has $(pod image inspect --format '{{.Size}}' localhost/chex-node:cpu) bytes"
