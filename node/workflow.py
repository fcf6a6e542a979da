"""What is done durably, and in which order; queues and processes are the executor's matter.

    quiet    a study's silence, debounced durably; its end queues the study
    study    plan > read each file > write > queue one delivery per destination > finish
    deliver  sends one output after the other until each is sent or parked; waits durably between attempts

Rounds of one study run one after the other (a queue partition per study). A destination that is down holds the slots
of its own queue and nobody else's; an object that a destination does not take now waits outside. Workflow code is
deterministic: clock, disk and network are touched in steps only, and arguments are JSON without patient data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from dbos import DBOS, SetEnqueueOptions, SetWorkflowID

from node.gate import Gate
from node.steps import Steps

QUIET: Final = "quiet"
STUDIES: Final = "studies"

_RECOVERIES: Final = 1_000_000  # a study is never given up because the machine was switched off often

DeliveryJson = dict[str, str]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflows:
    """The registered workflows, to be queued by whoever runs in this process."""

    quiet: Callable[[str], None]
    study: Callable[[str], None]
    deliver: Callable[[list[DeliveryJson], int, float], None]


def queue_of(destination: str) -> str:
    """The queue of one destination's deliveries."""
    return f"deliver {destination}"


def register(steps: Steps, gate: Gate, on_step: Callable[[str], None]) -> Workflows:
    """Register the three workflows with the engine."""

    def step(name: str, work: Callable[..., _T], *arguments: object) -> _T:
        # The gate stands inside the engine's step, so that an error is never noted as its result.
        result = DBOS.run_step({"name": name}, lambda: gate.run(lambda: work(*arguments)))
        on_step(name)
        return result

    @DBOS.workflow(name="deliver", max_recovery_attempts=_RECOVERIES)
    def deliver(deliveries: list[DeliveryJson], attempt: int, started: float) -> None:
        later, wait = [], 0.0
        for delivery in deliveries:
            tries = attempt
            while (result := step("send", steps.send, delivery, tries, started)).get("down"):
                DBOS.sleep(cast(float, result["wait"]))  # in its slot: a destination that is down is tried by few
                tries += 1
            if result["outcome"] == "delayed":
                later.append(delivery)
                wait = cast(float, result["wait"])
        if later:  # out of its slot: an object that is not taken now stops no other
            with SetEnqueueOptions(delay_seconds=wait):
                DBOS.enqueue_workflow(queue_of(later[0]["destination"]), deliver, later, attempt + 1, started)

    @DBOS.workflow(name="study", max_recovery_attempts=_RECOVERIES)
    def study(study_uid: str) -> None:
        plan = step("plan", steps.plan, study_uid)
        if plan is None:
            return
        outcomes = []
        for file in cast(list[str], plan["files"]):
            outcome = step("read", steps.read, study_uid, file)
            if outcome is None:
                return
            outcomes.append(outcome)
        written = step("write", steps.write, plan)
        if written is None:
            return
        for destination, deliveries in cast(dict[str, list[DeliveryJson]], written["deliveries"]).items():
            with SetWorkflowID(f"deliver:{destination}:{study_uid}:{plan['number']}:{plan['created_at']}"):
                DBOS.enqueue_workflow(queue_of(destination), deliver, deliveries, 1, cast(float, written["started"]))
            on_step("queue")
        step("finish", steps.finish, plan, outcomes, written)

    @DBOS.workflow(name="quiet", max_recovery_attempts=_RECOVERIES)
    def quiet(study_uid: str) -> None:
        with SetEnqueueOptions(queue_partition_key=study_uid):
            DBOS.enqueue_workflow(STUDIES, study, study_uid)
        on_step("ready")

    return Workflows(quiet=quiet, study=study, deliver=deliver)
