"""Exports graphs of the network, and proves that they compute what the weights compute. Imports `models` only."""

import models as _models  # noqa: F401  # first of all: it switches off the telemetry of ONNX Runtime
