#!/bin/sh
# Installs the packages of an image into an environment without pip, and the program in place; the Dockerfile runs it.
#
#   sh deploy/image/install.sh EXTRA ENVIRONMENT      cpu or gpu; /opt/venv
#
# With the files of `make digests` beside this one, pip takes only what has one of their hashes: the packages, and what
# builds the program. They must agree with constraints.txt and pyproject.toml, or the build ends; make them anew.
set -eu

extra=$1
environment=$2
beside=deploy/image
install() { python3 -m pip --python "$environment/bin/python" install --no-cache-dir "$@"; }

if [ ! -f "$beside/$extra.txt" ]; then
    install --constraint constraints.txt --editable ".[$extra]"
    exit
fi
backend=$(mktemp -d)
install --require-hashes --constraint constraints.txt --requirement "$beside/$extra.txt"
install --require-hashes --target "$backend" --requirement "$beside/build.txt"
PYTHONPATH=$backend install --no-deps --no-build-isolation --editable .
rm -r "$backend"
python3 -m pip --python "$environment/bin/python" check
