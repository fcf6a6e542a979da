"""The ChEX network: answers phrases and boxes about one chest film with boxes, scores and sentences.

Imports the rules that read sentences from `language`, and nothing else of ours; `program` has the version. Only what
stands above `node.read` imports the node: the laboratory, `site_films`, `calibrate` and `evaluate`, which read films of
a site as the node reads them.
Modules that need no torch (manifest, tokenizers, preprocess, boxes) do not import it. `spec §4.5` in a docstring is
section 4.5 of docs/develop/chex-specification.md; docs/develop/README.md explains the other citations.

Telemetry of libraries is switched off here, before any file of this folder imports a library: ONNX Runtime 1.29 and
later sends device and host data to its vendor, and `tokenizers` brings huggingface_hub. PyTorch asks for huge pages for
its large tensors (docs/operate/speed.md): one sentence reads all weights of the generator for each token, and with huge
pages the processor translates fewer addresses.
"""

import os

os.environ.update(ORT_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_OFFLINE="1")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch reads it when it makes its first tensor
