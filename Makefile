# Everything runs from this folder and out of .venv, which `make setup` fills at the versions of constraints.txt.
#
#   make demo     real chest films through the node, results in demo-out/
#   make test     sets everything up, Debian packages included, and runs `make check`
#   make check    format, lint, types, tests
#   make setup    only the Python environment
#   make train    the demonstration model anew, into train-out/; about two and a half hours on two cores
#   make clean    removes what these commands made, but not train-out/, which took hours
#   make float16  float16 graphs, every operator rounded, against float32 on 64 films
#   make chaos    kill -9, full disks, databases and archives that go away, under load; half an hour, nothing may be lost
#   make soak     ten callers, good and bad, for 30 minutes: memory, threads and descriptors must not grow
#   make bench    films taken beside dcmtk, turnaround, deliveries a second
#   make fuzz     bent associations and bent files for more than an hour
#   make sbom     what the default install holds, and its licences, into dist/
#   make container-test  builds the images on a stand-in base and runs them; root, minutes, 8 GB of disk
#   make full-size  imports a checkpoint of the published size and reads a film; minutes, 25 GB of disk
#
# PYTHON       the interpreter that .venv is made with, 3.11 to 3.13
# EXTRAS       gpu,test,demo on a machine with a GPU
# TORCH_INDEX  a package index with CPU builds of torch, which spares a download of gigabytes

PYTHON ?= python3
EXTRAS ?= cpu,test,demo
TORCH_INDEX ?=

comma := ,
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --constraint constraints.txt
PIP_INTO_SBOM := $(VENV)/bin/python -m pip --python dist/environment/bin/python --disable-pip-version-check install \
  --constraint constraints.txt
INSTALLED := $(VENV)/installed-$(subst $(comma),-,$(EXTRAS))
PHANTOM := models/weights/phantom

.PHONY: setup system-packages model demo test check float16 train full-size chaos soak bench fuzz sbom container-test clean
.DELETE_ON_ERROR:

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "Python 3.11, 3.12 or 3.13 is needed, and '$(PYTHON)' is not one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "No virtual environment could be made; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP) '.[$(EXTRAS)]'
	@touch $@

system-packages:
	@sh tests/system-packages.sh

# The graphs are made from the weights by the code of models/ and export/; parity.json is their proof, written last.
$(PHANTOM)/parity.json: $(INSTALLED) $(PHANTOM)/manifest.toml $(PHANTOM)/weights.safetensors \
		$(wildcard models/*.py models/checkpoint/*.py models/engines/*.py export/*.py)
	$(VENV)/bin/python -m export.build --model $(PHANTOM)
	@touch $@

model: $(PHANTOM)/parity.json

demo: setup model
	$(VENV)/bin/python -m node demo --out demo-out

test: system-packages check

check: setup model
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -q -n 2 --dist loadfile --durations=15

# Rounding every operator, as a GPU does, is slow here: `make test` reads two films so, this 64 in about a minute.
float16: setup model
	$(VENV)/bin/python -m export.build --model $(PHANTOM) --target onnx,tensorrt
	$(VENV)/bin/python -m export.parity --model $(PHANTOM) onnx rounded-float16

# Goes on where it was stopped; what it makes is looked at before it takes the place of $(PHANTOM).
train: setup
	$(VENV)/bin/python -m models.train models/training/runs/phantom.toml

full-size: setup
	$(VENV)/bin/python -m pytest -q -s -m full_size tests/test_full_size.py

# `make test` has short forms of chaos (kills, a full disk), soak and fuzz. Each ends with one JSON object; see --help for what can be chosen.
chaos soak fuzz: setup system-packages
	$(VENV)/bin/python -m tests.$@

bench: setup system-packages model
	$(VENV)/bin/python -m tests.bench

# The default install alone, in an environment of its own, looked at from outside.
sbom: setup
	$(PIP) '.[sbom]'
	$(PYTHON) -m venv --clear --without-pip dist/environment
	$(PIP_INTO_SBOM) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP_INTO_SBOM) '.[cpu]'
	$(VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/sbom.cdx.json dist/environment/bin/python
	$(VENV)/bin/pip-licenses --python dist/environment/bin/python --order license --format markdown \
	  --output-file dist/licences.md
	rm -rf dist/environment

container-test: setup
	TORCH_INDEX='$(TORCH_INDEX)' PYTHON=$(VENV)/bin/python sh tests/container.sh

clean:
	rm -rf $(VENV) demo-out dist $(PHANTOM)/onnx $(PHANTOM)/parity.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
