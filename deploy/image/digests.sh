#!/bin/sh
# Looks up what the images are made of, so that a build takes these bytes and no others: `make digests`.
#
#   digests.env                  each image with its tag and digest, for docker compose --env-file and docker --build-arg
#   cpu.txt, gpu.txt, build.txt  the packages of the two images and what builds the program, with the hashes of their
#                                files; install.sh then lets pip take nothing else
#
# It needs docker with buildx, the registries of the images, uv and the package index. Nothing is written unless all was
# looked up. An argument that is set in the environment (GRAFANA_TAG=...) is looked up instead of its default.
#
# TORCH_INDEX  a package index with PyTorch, as for the build
set -eu

cd "$(dirname "$0")/../.."
new=$(mktemp -d deploy/image/new.XXXXXX)
trap 'rm -rf "$new"' EXIT

# Each line: the argument, its default, and what the file itself puts before it, as grafana/grafana:
arguments() {
    sed -n 's/^ARG \([A-Z]*_IMAGE\)=\(.*\)$/\1 \2/p' Dockerfile deploy/compose/orthanc.Dockerfile
    sed -n 's/^ *image: \(.*:\)\${\([A-Z]*_TAG\):-\(.*\)}$/\2 \3 \1/p' deploy/compose.yaml
}

hashes() {
    file=$1
    shift
    uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --constraint constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX" --index-strategy unsafe-best-match} \
        --output-file "$new/$file" "$@"
}

arguments >"$new/arguments"
while read -r argument default before; do
    eval "value=\${$argument:-$default}"
    value=${value%%@*}
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$before$value" </dev/null)
    echo "$argument=$value@$digest"
done <"$new/arguments" >"$new/digests.env"

hashes cpu.txt --extra cpu pyproject.toml
hashes gpu.txt --extra gpu pyproject.toml
python3 -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' >"$new/build.in"
hashes build.txt "$new/build.in"

rm "$new/arguments" "$new/build.in"
mv "$new"/* deploy/image/
cat deploy/image/digests.env
