"""Exports graphs of the network, and proves that they agree with the weights. Imports `models` only."""

import models as _models  # noqa: F401  # first of all: it switches off the telemetry of ONNX Runtime
