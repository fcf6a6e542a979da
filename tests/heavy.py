"""The test files that are not quick: they start servers, processes or Java, export or train a network, or take seconds.

`make quick` runs every other test file. `make test` begins with these, slowest first: a long file that began last would
leave the other core without work. The order comes from the durations of a whole run; see `--durations=0`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

HEAVY: Final = tuple(
    """
    object_questions web_reviewing web_words cluster journey crash web_kills answer_delivery chaos decoder_fuzz
    web_pages day web_journey orthanc_questions conformance web_replies soak demonstration_model journey_delivery
    commands web_corrections critical bad_input sending explain_study training_run training_batches no_patient_data
    export float16 view_head web_uploads sweep_corrections backup pdu_fuzz hl7_delivery shadow start destinations damage
    golden metrics_live http_connections rounds proving web_api sweep

    abandon agreement alerts alerts_live answer_objects asking audit audit_journey back_pressure bench bucket chart
    chart_split chart_values checking commitment commitment_paused company config conflict connections console
    container_clean_up containers conv_stem correcting cost database declared_sizes desk
    destination_kinds devices dicomscope_questions dicomweb docs doctor doctor_machine doctor_model doctor_peers
    engine_bench engines evaluate explain_file fallback faults_admission faults_answers_of_archives
    faults_associations faults_blame faults_clock faults_decoding faults_display faults_full_disk faults_identity
    faults_lost_workflows faults_pages faults_questions faults_readers faults_refused_requests faults_versions
    faults_wire first_steps flood forked full_size fuzz golden_sizes golden_tasks gpu gpu_proof handover http https
    importer importer_export importer_parts importer_refusals join journey_commitment journey_hl7 journey_orthanc
    ledger licences listener local located memory mirror model_files onnx_cuda order_listener order_tls
    orthanc_names orthanc_routing packaging packed_decoding patient patient_updates peers phantom_dicom phantoms
    phrasebook privacy profiles published_runs random_weights ratio ratio_reading reader receiving_live reception
    refusals refused_callers rejected_films rejection reload reload_prompts s3_journey same_answer short_calls
    source_probe split_corrections sr sr_forms startup statement static_decoding supply tensorrt_build
    tensorrt_engine tensorrt_rtx tensorrt_stubs tls tls_destinations torch_cuda tracing training_steps
    training_store upgrade view_evaluation web_asked web_audit web_bodies web_events web_flood web_keys web_looks
    web_passwords web_privacy web_questions web_review web_studies web_submit wheels
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
