"""Runnable: builds engines of float16 graphs with NVIDIA's own builder, without a GPU. Prints one JSON document.

    python -m tests.drills.rtx_build GRAPH.onnx...

TensorRT-RTX has the interface of TensorRT and the same parser of ONNX, and builds engines on any machine; running them
takes a GPU. Here it takes TensorRT's place, so the code that builds is the program's own. Each graph gets the seconds,
the bytes of its engine, and how many attentions became one fused kernel; or the error that refused it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

FUSED = b"_gemm_mha_v2_shared_mem_size"
"""Stands in an engine once for each fused attention, as the names of its kernels do several times."""


def main(paths: list[str]) -> None:
    sys.modules["tensorrt"] = importlib.import_module("tensorrt_rtx_bindings")
    from models.engines import EngineUnavailable
    from models.engines.tensorrt_engine import ErrorLog, build_engine

    built: dict[str, dict[str, object]] = {}
    log = ErrorLog()
    for path in map(Path, paths):
        began = time.monotonic()
        try:
            engine = build_engine(path.read_bytes(), log=log)
        except EngineUnavailable as error:
            built[path.name] = {"reason": error.reason, "error": str(error)}
            continue
        seconds = round(time.monotonic() - began, 1)
        built[path.name] = {"bytes": len(engine), "fused": engine.count(FUSED), "seconds": seconds}
    print(json.dumps(built))


if __name__ == "__main__":
    main(sys.argv[1:])
