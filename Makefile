# Everything runs from this folder and out of .venv, which `make setup` fills at the versions of constraints.txt.
#
#   make demo     real chest films through the node, results in demo-out/
#   make test     whether the program is right: sets everything up, Debian packages included; ten minutes on two cores
#   make check    format, lint, types, and the links of the documents
#   make drills   what needs a farm of processes or half an hour; ONLY="kills pages" takes parts, LIST=1 names them
#   make drills-short   the tests among them, with short forms of the programs; some 16 minutes
#   make quick    lint, and the test files of less than five seconds: less than two minutes, for every change
#   make coverage the share of the lines of each file that the tests of `make test` run, the lowest first; ALL=1: and those of the drills
#   make setup    only the Python environment
#   make paper-small  from miniatures of the paper's data sets to its tables, with a small network; two minutes
#   make train    the demonstration model anew, into train-out/; about six hours on two cores
#   make clean    removes what these commands made, but not train-out/, which took hours
#   make chaos    kill -9, a full disk, an archive that goes away, under load; ten minutes, nothing may be lost
#   make soak     ten DICOM callers, good and bad, and 2,000 idle HTTP connections for 30 minutes: nothing may grow
#   make conformance  make encodings, then OHIF, DICOMscope and validators on the node's objects; pictures in demo-out/conformance/
#   make encodings  good films of every encoder at hand, in every wrapping: each must be read with the same pixels; some minutes
#   make bench    reports of the published size beside the plain way, films taken beside dcmtk, what a film costs the node; half an hour
#   make sweep    250 phantoms, and FILMS="a.jsonl b.jsonl:10", looked through for what contradicts itself; half an hour
#   make pictures the pages beside an Orthanc, in Chromium: the pictures of docs/pictures; some minutes
#   make dashboards  the four dashboards with a node's figures, drawn by components of Grafana: docs/pictures/dashboard-*.jpg
#   make fuzz     bent associations, requests, pixels and files for half an hour
#   make docs     the documents as pages, into site/; needs no network once the extra docs is installed
#   make sbom     what the default install holds, and its licences, into dist/
#   make digests  the images' base images by digest and their packages by hash, into deploy/image; asks registries, by docker
#   make release-check  what a release still lacks: one version everywhere, notes, digests, proofs, a free tag
#   make audit    what is known against the packages of the default install; asks PyPI
#   make gpu-proof  on a machine with a GPU: builds, proves and times every runtime there, and writes gpu-proof/gpu-proof.json
#   make container-test  builds the images on a stand-in base and runs them; root, minutes, 8 GB of disk
#   make full-size  imports a checkpoint of the published size, reads a film and serves it; minutes, 25 GB of disk
#
# ONLY         parts of make drills, such as "kills pages", or of make bench, such as report,receive, or of make fuzz, such as pixels
# AUDIT        options of pip-audit, such as "-s osv", for make audit
# FILMS        lists of real films for make sweep; FILE.jsonl:10 takes a tenth of one
# PYTHON       the interpreter that .venv is made with, 3.11 to 3.13
# EXTRAS       gpu,test on a machine with a GPU
# MODEL        the model directory for make gpu-proof
# TORCH_INDEX  a package index with CPU builds of torch, which spares a download of gigabytes

PYTHON ?= python3
EXTRAS ?= cpu,test
TORCH_INDEX ?=
MODEL ?= models/weights/phantom

comma := ,
VENV := .venv
# pip would compile eight times as many modules as the program imports; `make setup` compiles those.
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --no-compile --constraint constraints.txt
# uv installs the many packages after PyTorch in half of pip's time. It does not read pip's settings: where these name another
# index than PyPI, or where uv fails, pip installs the same.
UV := $(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python --constraint constraints.txt
PIP_HAS_INDEX := $(VENV)/bin/python -m pip config list | grep -q '\.\(no-index\|index-url\)='
PIP_INTO_SBOM := $(VENV)/bin/python -m pip --python dist/environment/bin/python --disable-pip-version-check install \
  --constraint constraints.txt
INSTALLED := $(VENV)/installed-$(subst $(comma),-,$(EXTRAS))
INSTALLED_EXTRAS := $(subst -,$(comma),$(patsubst $(VENV)/installed-%,%,$(firstword $(wildcard $(VENV)/installed-*))))
DEMO_EXTRAS := $(if $(filter file,$(origin EXTRAS)),$(or $(INSTALLED_EXTRAS),cpu),$(EXTRAS))
PHANTOM := models/weights/phantom
DOCUMENTS := *.md LICENSE CITATION.cff docs helm/README.md examples/*/README.md $(PHANTOM)/MODEL_CARD.md $(PHANTOM)/card
# One thread for each process: those of so small a network wait for each other longer than they compute.
PYTEST := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q --dist loadfile --no-loadscope-reorder

# What make test runs, and what make drills-short runs.
SUITE := not drill and not full_size and not gpu
DRILLS := drill and not full_size and not gpu

# Where this is set, every process of the tests would compile all of the program again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup system-packages viewers model demo test check drills drills-short quick durations coverage lint types collect run-tests train full-size paper-small
.PHONY: chaos soak encodings bench sweep pictures dashboards fuzz conformance sbom digests audit release-check docs
.PHONY: gpu-proof container-test clean
.DELETE_ON_ERROR:

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "Python 3.11, 3.12 or 3.13 is needed, and '$(PYTHON)' is not one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "No virtual environment could be made; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch uv
	! $(PIP_HAS_INDEX) && $(UV) --editable '.[$(EXTRAS)]' || $(PIP) --editable '.[$(EXTRAS)]'
	@$(VENV)/bin/python -c 'import models.engines.torch_engine, models.reading.reader, node.commands.read_files, \
	  node.outputs.writers, node.service.app'
	@touch $@

system-packages:
	@sh tests/system-packages.sh

# The viewers that the tests use and that no Debian package holds, each at one version with a checked hash, into .venv.
viewers: setup system-packages
	$(VENV)/bin/python -m tests.drills.conformance.packages

# The graphs are made from the weights by the code of models/ and export/; parity.json is their proof, written last.
$(PHANTOM)/parity.json: $(INSTALLED) $(PHANTOM)/manifest.toml $(PHANTOM)/weights.safetensors \
		$(wildcard models/*.py $(foreach part,checkpoint engines network reading,models/$(part)/*.py) export/*.py)
	$(VENV)/bin/python -m export.build --model $(PHANTOM)
	@touch $@

model: $(PHANTOM)/parity.json

# Without the packages of the tests, unless they are here already.
demo:
	@$(MAKE) --no-print-directory EXTRAS=$(DEMO_EXTRAS) setup model
	$(VENV)/bin/python -m node demo --out demo-out

# The Debian packages and the Python environment have nothing to do with each other. Collecting compiles all tests once,
# before several processes would do so at the same moment; what cannot be collected fails in run-tests, which says why.
test:
	@$(MAKE) --no-print-directory --jobs=2 system-packages setup
	@$(MAKE) --no-print-directory --jobs=2 model viewers collect
	@$(MAKE) --no-print-directory run-tests

collect: setup
	@$(PYTEST) -m '$(SUITE)' --collect-only >/dev/null || true

# The slowest file of tests/durations.json begins. Four processes for two cores: many tests wait for servers.
run-tests: model
	$(PYTEST) -n 4 -m '$(SUITE)' --durations=15

check: lint types docs

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: setup
	$(VENV)/bin/mypy

drills: setup viewers model
	$(VENV)/bin/python -m tests.drills $(if $(LIST),--list) $(ONLY)

# Five processes on two cores: what missed a limit of time beside the others runs once more, alone, and has to pass then.
drills-short: viewers model
	$(PYTEST) -n 5 -m '$(DRILLS)' --durations=15 || \
	  OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -p no:xdist -m '$(DRILLS)' --last-failed --last-failed-no-failures none

# The tests of both, and how long each file takes, into tests/durations.json.
durations: viewers model
	$(PYTEST) -n 5 --record-durations

# The files that took less than five seconds.
quick: lint
	$(PYTEST) -n 2 -m '$(SUITE)' --quick

coverage: model
	$(PYTEST) -n 4 -m '$(if $(ALL),not full_size and not gpu,$(SUITE))' --cov --cov-report=term

# Goes on where it was stopped; what it makes is looked at before it takes the place of $(PHANTOM).
train: setup
	$(VENV)/bin/torchrun --standalone --shutdown-timeout 600 --nproc-per-node 2 -m models.train models/lab/training/runs/phantom.toml

# The extra test has what the extras paper and evaluate have.
paper-small: setup
	$(VENV)/bin/python -m tests.drills.paper_small

full-size: setup
	$(VENV)/bin/python -m pytest -q -s -m full_size tests/drills/test_full_size.py

# Each ends with one JSON object; --help says what can be chosen.
chaos soak encodings: setup system-packages
	$(VENV)/bin/python -m tests.drills.$@

fuzz: setup system-packages
	$(VENV)/bin/python -m tests.drills.fuzz $(if $(ONLY),--only $(ONLY))

conformance: viewers encodings
	$(VENV)/bin/python -m tests.drills.conformance

sweep: setup model
	$(VENV)/bin/python -m tests.drills.sweep $(if $(FILMS),--films $(FILMS))

pictures: setup viewers model
	$(VENV)/bin/python -m tests.support.web_journey --out docs/pictures

# Fetches 400 packages of npm, which nothing else needs.
dashboards: setup system-packages model
	$(VENV)/bin/python -m tests.deploy.dashboards_drawn --out docs/pictures

bench: setup system-packages model
	$(PIP) --editable '.[bench]'
	$(VENV)/bin/python -m tests.drills.bench $(if $(ONLY),--only $(ONLY))

# In an environment of its own, because .venv may hold the ONNX Runtime for a CPU. Without TensorRT, which comes from an
# index of NVIDIA, the other two are proven.
gpu-proof:
	@nvidia-smi --list-gpus 2>/dev/null | grep -q . || { \
	  echo "nothing was proven: there is no NVIDIA GPU here that nvidia-smi lists" >&2; exit 2; }
	@$(MAKE) --no-print-directory VENV=.venv-gpu EXTRAS=gpu,test setup || { \
	  $(MAKE) --no-print-directory VENV=.venv-gpu EXTRAS=test setup && \
	  .venv-gpu/bin/python -m pip --disable-pip-version-check install --constraint constraints.txt onnxruntime-gpu; }
	.venv-gpu/bin/python -m tests.drills.gpu_proof --model $(MODEL)

# The documents lie in dist/documents as in the repository, so that links between them hold; mkdocs.yml says the rest.
docs: setup
	@$(VENV)/bin/python -c 'import material' 2>/dev/null || $(PIP) --editable '.[docs]'
	rm -rf dist/documents && mkdir -p dist/documents
	cp -R --parents $(DOCUMENTS) dist/documents
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The default install alone, in an environment of its own, looked at from outside.
sbom: setup
	$(PIP) --editable '.[sbom]'
	$(PYTHON) -m venv --clear --without-pip dist/environment
	$(PIP_INTO_SBOM) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP_INTO_SBOM) '.[cpu]'
	$(VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/sbom.cdx.json dist/environment/bin/python
	$(VENV)/bin/pip-licenses --python dist/environment/bin/python --order license --format markdown \
	  --output-file dist/licences.md
	rm -rf dist/environment

digests: setup
	@TORCH_INDEX='$(TORCH_INDEX)' PATH="$(abspath $(VENV))/bin:$$PATH" sh deploy/image/digests.sh

# pip-audit ends with 1 for a known fault and for a failure of its own alike; it writes the file if it has asked for all.
audit: setup
	@mkdir -p dist && rm -f dist/audit.json
	@$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --constraint constraints.txt --extra cpu \
	  --output-file dist/audited.txt pyproject.toml && timeout 300 $(VENV)/bin/pip-audit --strict --disable-pip \
	  --progress-spinner off --requirement dist/audited.txt --format json --output dist/audit.json $(AUDIT); status=$$?; \
	[ -s dist/audit.json ] || { echo "not run: package index or pip-audit's service did not answer, or not for all" >&2; exit 2; }; \
	[ $$status = 0 ] || { echo "dist/audit.json names what is known" >&2; exit 1; }

release-check: setup model
	@$(VENV)/bin/python -m deploy.release

container-test: setup
	TORCH_INDEX='$(TORCH_INDEX)' PYTHON=$(VENV)/bin/python sh tests/container.sh

clean:
	rm -rf $(VENV) .venv-gpu gpu-proof demo-out dist site $(PHANTOM)/onnx $(PHANTOM)/parity.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
