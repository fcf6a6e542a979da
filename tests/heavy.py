"""The test files that are not quick: they start servers, processes or Java, export or train a network, or take seconds.

`make quick` runs every other test file. `make test` begins with these, slowest first: a long file that began last would
leave the other core without work. The order comes from the durations of a whole run; see `--durations=0`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

HEAVY: Final = tuple(
    """
    export float16 journey conformance cluster golden view_head no_patient_data chaos training_run explain_study start
    soak critical importer_export tensorrt_engine tensorrt_rtx proving journey_delivery demonstration_model backup
    privacy crash sr commands fuzz journey_hl7 fallback alerts metrics_live model_files rounds startup first_steps
    sweep sweep_corrections abandon doctor conv_stem alerts_live pdu_fuzz damage commitment_paused refused_callers
    correcting journey_orthanc back_pressure hl7_delivery training_store evaluate flood licences training_steps join
    patient database chart packaging

    agreement answer_delivery answer_objects asking bad_input chart_split chart_values checking commitment config
    conflict connections console container_clean_up containers cost declared_sizes destination_kinds destinations
    devices docs doctor_machine doctor_model doctor_peers engines explain_file forked full_size golden_sizes
    golden_tasks gpu handover http http_connections https importer importer_parts importer_refusals journey_commitment
    ledger listener local located object_questions order_listener order_tls orthanc_names orthanc_questions
    orthanc_routing packed_decoding peers phantom_dicom phantoms profiles published_runs random_weights ratio
    ratio_reading reader receiving_live reception refusals reload sending shadow source_probe sr_forms statement
    static_decoding tensorrt_build tensorrt_stubs tls tls_destinations torch_cuda upgrade view_evaluation web_api
    web_audit web_bodies web_corrections web_events web_flood web_journey web_kills web_looks web_pages web_passwords
    web_privacy web_questions web_replies web_reviewing web_studies web_submit web_uploads web_words
    """.split()
)
"""Names without `test_` and `.py`: above the empty line the slowest first, below it in the order of the alphabet."""

_RANKS: Final = {f"test_{name}.py": rank for rank, name in enumerate(HEAVY)}


def rank_of(path: Path) -> int:
    """Give the place of a test file in the order of a whole run; quick files come last."""
    return _RANKS.get(path.name, len(_RANKS))


def is_heavy(path: Path) -> bool:
    """Say whether `make quick` leaves the file out."""
    return path.name in _RANKS
