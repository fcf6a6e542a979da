"""The tests; `peers.py` and `orthanc.py` are what they talk to."""

import models as _models  # noqa: F401  # first of all: it switches off the telemetry of ONNX Runtime
