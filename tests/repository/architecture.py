"""The rules that test_architecture.py checks: who may import whom, what is never called.

A new file of `node/` gets its place in `LAYERS`, or the test fails.
"""

from __future__ import annotations

PRODUCT = ("node", "models", "export", "language")
CODE = (*PRODUCT, "examples")
"""What is held to these rules; examples are installed as packages of their own."""

# Files and folders of `node/`: a file imports only what stands in a line below its own, and files of its own folder.
# An import inside a function counts as any other.
LAYERS = (
    {"__main__"},
    {"commands"},
    {"service"},
    {"web"},
    {"health"},
    {"jobs"},
    {"pipeline"},
    {"rounds"},
    {"audit", "receive"},
    {"answers", "deliver", "orders"},
    {"outputs"},
    {"metrics", "read"},
    {"net"},
    {"store"},
    {"config", "log"},
    {"settings"},
    {"dicom", "hl7", "output_kinds", "prompt_set"},
    {"character_sets", "check_result", "csv_table", "domain", "plugs", "threads"},
    {"cardiothoracic_ratio", "errors"},
)

# The words that a network, the node and the rules that read sentences share. All may import them: whoever speaks of a
# finding's state or side means the same. In turn that file imports no library, and of ours number checks alone.
CONTRACT = "models.contract"
# The version, and what a person types to run a part of the program; it imports nothing, and all may import it.
PROGRAM = "models.program"

# Reads every document, of both, to a value of its type.
DOCUMENTS = "models.documents"

# What reads films of a site as the node reads them: it stands above `node.read` and `node.answers`, not below the node
# as what is served of `models` does.
ABOVE_THE_READER = ("models/lab/", "models/site_films.py", "models/calibrate.py", "models/evaluate.py")
HIGHEST_BELOW_THEM = "answers"

# Which of our folders a folder may import, and the files that alone may.
FOLDERS: dict[str, dict[str, tuple[str, ...]]] = {
    # node/__main__.py shows progress as models do.
    "node": {
        "models": (
            *(f"node/read/{name}.py" for name in ("model", "manifest", "engines")),
            "node/__main__.py",
        ),
        "language": ("node/",),
    },
    # What is served of `models` imports nothing of the node.
    "models": {"language": ("models/",), "node": ABOVE_THE_READER},
    "export": {"models": ("export/",), "language": ("export/",)},
    "language": {},
    # As a package of somebody else: nothing of ours imports it.
    "examples": {"node": ("examples/",)},
}

# What a node needs to read films never imports these; the files below alone do.
LABORATORY = ("models.lab", "models.site_films", "models.calibrate", "models.evaluate")
BEFORE_THE_LABORATORY = (
    "models/lab/",
    *(
        f"models/{name}.py"
        for name in ("calibrate", "evaluate", "golden", "phantoms", "prepare", "site_films", "train")
    ),
)

# The one home of each outside library: a file, or a folder with its slash.
HOMES = {
    "annotated_types": ("node/settings/rules.py",),
    "argon2": ("node/web/passwords.py",),
    "authlib": ("node/web/single_sign_on.py",),
    "cryptography": ("node/net/tls.py",),
    "ensemble_boxes": ("models/lab/datasets/vindr.py",),
    "dbos": ("node/jobs/executor.py", "node/jobs/workflows.py"),
    "dicomanonymizer": ("node/commands/export/deidentified.py",),
    "fastapi": ("node/web/",),
    "fhir": ("node/outputs/fhir.py",),
    "h11": ("node/net/http_connections.py",),
    "highdicom": ("node/outputs/", "examples/output_kind/", "examples/send_and_read_back/"),
    "hl7apy": ("node/outputs/oru.py",),
    "httpx2": (
        "node/deliver/web_request.py",
        "node/health/alerts.py",
        "node/jobs/processes.py",
        "node/web/single_sign_on.py",
    ),
    "itsdangerous": ("node/web/sign_in.py",),
    "jinja2": ("models/checkpoint/card.py", "node/web/"),
    "joserfc": ("node/web/single_sign_on.py",),
    "matplotlib": ("models/lab/evaluation/plots.py",),
    "nltk": ("models/lab/evaluation/published/likeness.py",),
    "onnx": ("export/", "examples/reader_onnx/"),
    "onnxruntime": (
        "models/engines/onnx_engine.py",
        "models/engines/onnx_cuda_engine.py",
        "export/",
        "examples/reader_onnx/",
    ),
    "onnxscript": ("export/",),
    "prometheus_client": ("node/metrics.py",),
    "python_multipart": ("node/web/",),
    "pynetdicom": (
        "node/receive/",
        "node/deliver/connections.py",
        "node/deliver/dicom.py",
        "node/net/pynetdicom_adapter.py",
        "examples/send_and_read_back/",
    ),
    "pycocotools": ("models/lab/evaluation/detection.py",),
    "pydantic": ("models/documents.py", "node/web/"),
    "pydantic_core": ("models/documents.py",),
    "pysbd": ("models/lab/datasets/reports.py",),
    "rich": ("models/progress.py",),
    "rouge_score": ("models/lab/evaluation/reports.py",),
    "sacrebleu": ("models/lab/evaluation/published/likeness.py", "models/lab/evaluation/reports.py"),
    "scipy": ("models/lab/losses/detection.py",),
    "sklearn": ("models/lab/evaluation/",),
    "sqlalchemy": (
        "node/jobs/lost.py",
        *(f"node/store/{name}.py" for name in ("database", "ledger", "lookup", "statistics", "tables", "worklist")),
    ),
    "sqlite3": ("node/store/database.py",),
    "starlette": ("node/service/http.py", "node/net/http_connections.py", "node/web/"),
    "structlog": ("node/log.py",),
    "tensorrt": ("models/engines/tensorrt_engine.py",),
    "tomli_w": ("node/config.py", "models/manifest.py"),
    "torch": ("models/", "export/"),
    "transformers": (
        "models/lab/evaluation/published/bertscore.py",
        "models/lab/evaluation/published/chexbert.py",
    ),
    "uvicorn": ("node/net/http_connections.py", "node/web/access.py"),
}

# Files that a person runs, or that end what is run, and so speak on the terminal.
COMMANDS = (
    "examples/ask_a_model/ask_a_model.py",
    "examples/http_client/http_client.py",
    "examples/send_and_read_back/send_and_read_back.py",
    "export/build.py",
    "export/parity.py",
    "models/calibrate.py",
    "models/checkpoint/__main__.py",
    "models/command.py",
    "models/evaluate.py",
    "models/lab/evaluation/card.py",
    "models/lab/evaluation/paper.py",
    "models/lab/evaluation/placing.py",
    "models/golden.py",
    "models/join.py",
    "models/phantoms.py",
    "models/prepare.py",
    "models/random_weights.py",
    "models/thresholds.py",
    "models/train.py",
    "node/__main__.py",
)

# The boundaries to another world, where any failure is turned into one of ours, or parked and counted.
BOUNDARIES = (
    "models/checkpoint/unpickle.py",
    "models/engines/onnx_engine.py",
    "models/engines/onnx_cuda_engine.py",
    "models/engines/scheduler.py",
    "models/lab/datasets/vindr.py",
    "models/lab/evaluation/published/likeness.py",
    "models/reading/named_reader.py",
    "models/reading/tokenizers.py",
    "node/__main__.py",
    "node/commands/export/folder.py",
    "node/dicom/attributes.py",
    "node/deliver/commitment.py",
    "node/store/incoming.py",
    "node/check_result.py",
    "node/threads.py",
    "node/jobs/running_steps.py",
    "node/jobs/lost.py",
    "node/jobs/executor.py",
    "node/dicom/file_head.py",
    "node/dicom/header.py",
    "node/dicom/header_reading.py",
    "node/outputs/batches.py",
    "node/plugs.py",
    "node/service/http.py",
    "node/service/reload.py",
    "node/web/single_sign_on.py",
    "node/read/decoder_child.py",
    "node/read/decoding.py",
    "node/dicom/question_object.py",
    "node/receive/intake.py",
    "node/receive/listener.py",
    "node/receive/server.py",
    "node/orders/listener.py",
    "node/net/pynetdicom_adapter.py",
    "node/deliver/delivery.py",
    "node/jobs/answers.py",
    "node/jobs/object_questions.py",
    "node/jobs/round_steps.py",
    "node/service/receiver.py",
)

# What is never called, by the name at the call, and where it may be.
FORBIDDEN_CALLS = {
    "print": COMMANDS,
    "input": (),
    "eval": (),
    "exec": (),
    "breakpoint": (),
    "os.getenv": (),
    "os.system": (),
    "pickle.load": (),
    "pickle.loads": (),
    "struct.Struct": (),
    "struct.pack": (),  # pydicom encodes elements, pynetdicom PDUs
    "struct.pack_into": (),
    "datetime.utcnow": (),
}
