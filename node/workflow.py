"""What is done durably, and in which order; queues and processes are the executor's matter.

    quiet    a study's silence, debounced durably; its end gives the study its place in the queue
    study    plan > read each file > write > queue one delivery per destination > finish
    deliver  sends one output after the other until each is sent or parked; waits durably between attempts
    commit   asks a destination to commit to what it was sent, until it did; what it cannot keep is sent again

Rounds of one study run one after the other: each claims its study first, and one that comes while another runs goes
back to `quiet` for a moment. A destination that is down holds the slots of its own queue and nobody else's; an object
that a destination does not take now waits outside. Workflow code is deterministic: clock, disk and network are touched
in steps only, and arguments are JSON without patient data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

from dbos import DBOS, SetEnqueueOptions, SetWorkflowID

from node.config import DestinationSettings, DicomDestination
from node.gate import Gate
from node.sending import DeliveryJson, Json, Sending
from node.steps import Steps

QUIET: Final = "quiet"
STUDIES: Final = "studies"

_BUSY_SECONDS: Final = 1.0  # between two looks at a study of which another round runs
OPEN: Final = ("PENDING", "ENQUEUED", "DELAYED")
"""The states of a workflow that is not over."""

_RECOVERIES: Final = 1_000_000  # a study is never given up because the machine was switched off often

_T = TypeVar("_T")
Delivery = Callable[[list[DeliveryJson], int, float], None]


class _Step(Protocol):
    """Runs one step of a workflow, and notes its result."""

    def __call__(self, name: str, work: Callable[..., _T], *arguments: object) -> _T: ...


def queue_of(destination: str) -> str:
    """The queue of one destination's deliveries."""
    return f"deliver {destination}"


def queues_of(destination: DestinationSettings) -> list[str]:
    """The queues of one destination."""
    name = destination.name
    return [queue_of(name), commit_queue_of(name)] if isinstance(destination, DicomDestination) else [queue_of(name)]


def commit_queue_of(destination: str) -> str:
    """The queue of what one destination is asked to commit to; waiting for its answers holds up no delivery."""
    return f"commit {destination}"


def register(sending: Sending, steps: Steps | None, gate: Gate, on_step: Callable[[str], None]) -> Delivery:
    """Register the workflows with the engine, those that read where there are steps for them; returns `deliver`."""

    def step(name: str, work: Callable[..., _T], *arguments: object) -> _T:
        # The gate stands inside the engine's step, so that an error is never noted as its result.
        result = DBOS.run_step({"name": name}, lambda: gate.run(lambda: work(*arguments)))
        on_step(name)
        return result

    deliver = _register_delivery(sending, gate, step)
    if steps is not None:
        _register_reading(steps, gate, step, deliver=deliver, on_step=on_step)
    return deliver


def _register_reading(
    steps: Steps, gate: Gate, step: _Step, *, deliver: Delivery, on_step: Callable[[str], None]
) -> None:
    """Register `quiet` and `study`, which queue each other and deliveries."""

    def plan_alone(study_uid: str, workflow: str) -> Json | None:
        if not steps.claim(study_uid, workflow, is_over=_is_over):
            return {"busy": True}
        return steps.plan(study_uid)

    @DBOS.workflow(name="study", max_recovery_attempts=_RECOVERIES)
    @gate.guarded
    def study(study_uid: str) -> None:
        plan = step("plan", plan_alone, study_uid, DBOS.workflow_id)
        if plan is None:
            return
        if plan.get("busy"):  # never waited for in a slot, which a study that can be read may have
            with SetEnqueueOptions(delay_seconds=_BUSY_SECONDS):
                DBOS.enqueue_workflow(QUIET, quiet, study_uid)
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
    @gate.guarded
    def quiet(study_uid: str) -> None:
        place = None
        if DBOS.patch("place"):  # version 1 queued studies in the order in which they got quiet
            place = step("place", steps.place, study_uid)
            if place is None:
                return
        with SetEnqueueOptions(priority=place):
            DBOS.enqueue_workflow(STUDIES, study, study_uid)
        on_step("ready")


def _register_delivery(sending: Sending, gate: Gate, step: _Step) -> Delivery:
    """Register `deliver` and `commit`, each of which may queue the other."""

    @DBOS.workflow(name="deliver", max_recovery_attempts=_RECOVERIES)
    @gate.guarded
    def deliver(deliveries: list[DeliveryJson], attempt: int, started: float) -> None:
        later, sent, wait, sent_at = [], [], 0.0, 0.0
        for delivery in deliveries:
            result = send(delivery, attempt, started)
            if result["outcome"] in ("delayed", "down"):
                later.append(delivery)
                wait = cast(float, result["wait"])
            elif "commit" in result:
                sent.append(delivery)
                sent_at = cast(float, result["commit"])
        if later:  # out of its slot: an object that is not taken now stops no other
            with SetEnqueueOptions(delay_seconds=wait):
                DBOS.enqueue_workflow(queue_of(later[0]["destination"]), deliver, later, attempt + 1, started)
        if sent:
            DBOS.enqueue_workflow(commit_queue_of(sent[0]["destination"]), commit, sent, 1, sent_at)

    def send(delivery: DeliveryJson, attempt: int, started: float) -> Json:
        """Send one object; while its destination is down, wait in the slot, so that few are tried in vain.

        One that meets the same again although the destination answers may be the cause itself: its own delay.
        """
        while (result := step("send", sending.send, delivery, attempt, started)).get("down"):
            DBOS.sleep(cast(float, result["wait"]))  # noted by version 1, which slept here and then sent again
            attempt += 1
        if result["outcome"] != "down":
            return result
        wait_for(delivery["destination"], started)
        return step("send", sending.send, delivery, attempt + 1, started)

    def ask(deliveries: list[DeliveryJson], attempt: int, started: float) -> Json:
        """Ask a destination to commit; while it is down, wait in the slot, so that few are asked for in vain."""
        asked = step("commit", sending.commit, deliveries, attempt, started)
        if not asked.get("down"):
            return asked
        wait_for(deliveries[0]["destination"], started)
        return step("commit", sending.commit, deliveries, attempt + 1, started)

    def wait_for(destination: str, started: float) -> None:
        while not step("probe", sending.probe, destination, started):
            pass

    @DBOS.workflow(name="commit", max_recovery_attempts=_RECOVERIES)
    @gate.guarded
    def commit(deliveries: list[DeliveryJson], attempt: int, started: float) -> None:
        asked = ask(deliveries, attempt, started)
        again, left = (cast(list[DeliveryJson], asked[name]) for name in ("again", "open"))
        with SetEnqueueOptions(delay_seconds=cast(float, asked["wait"])):  # never waited for in a slot
            if again:
                destination = again[0]["destination"]
                DBOS.enqueue_workflow(queue_of(destination), deliver, again, 1, cast(float, asked["now"]))
            if left:
                DBOS.enqueue_workflow(commit_queue_of(left[0]["destination"]), commit, left, attempt + 1, started)

    return deliver


def _is_over(workflow: str) -> bool:
    """Whether a workflow has ended, or the engine knows nothing of it."""
    status = DBOS.get_workflow_status(workflow)
    return status is None or status.status not in OPEN
