"""The durable workflows, and the order of their steps. `executor` has queues and processes.

    quiet    waits until no more files of a study arrive (a durable debounce), then gives it a place in the queue
    gather   waits after a correction; if it was the last, releases all that wait in its study, and queues `quiet`
    study    plan > read each file > write > queue one delivery per destination > finish
    answer   write the objects of one answer that a person sends > queue one delivery per destination
    question answer the questions in a workstation's object > queue one `answer` per question; waits for its film
    deliver  sends its outputs in order until each is sent or parked; waits durably between attempts
    commit   requests storage commitment from a destination until it answers; sends lost outputs again

Rounds of one study run one after another: each round claims its study first, and while another round runs it goes back
to `quiet` for a moment. A destination that is down fills only the slots of its own queue. An object that its
destination rejects for now waits outside the slots. Critical outputs have the first places in the queue, and an output
in a slot yields to them once, for a moment. Workflow code is deterministic: clock, disk and network are used in steps
only, and arguments are JSON without patient data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Final, TypeVar

from dbos import DBOS, SetEnqueueOptions, SetWorkflowID

from models.documents import decode, encode
from node.deliver.delivery import Sending
from node.deliver.kinds import can_confirm
from node.deliver.results import Asked, DeliveryBatch, Outcome, Queued, Sent
from node.domain import Delivery, Json, JsonObject, is_uid
from node.jobs.answer_steps import AnswerSteps
from node.jobs.lost_workflows import Park
from node.jobs.object_questions import Looked, ObjectSteps
from node.jobs.queue_places import delivery_place
from node.jobs.round_steps import Steps, WrittenRound
from node.jobs.running_steps import RunningSteps
from node.rounds.round_plan import Round
from node.settings.destinations import DestinationSettings
from node.store import files

QUIET: Final = "quiet"
GATHER: Final = "gather"
STUDY: Final = "study"
DELIVER: Final = "deliver"
COMMIT: Final = "commit"
ANSWER: Final = "answer"
QUESTION: Final = "question"
STUDIES: Final = "studies"

_BUSY_SECONDS: Final = 1.0  # first wait while another round of the study runs; doubles each time
_LONGEST_BUSY_SECONDS: Final = 8.0
_GIVE_WAY_SECONDS: Final = 1.0  # wait while critical outputs are sent
OPEN: Final = ("PENDING", "ENQUEUED", "DELAYED")
"""The states of an open workflow."""

_RECOVERIES: Final = 1_000_000  # no number of restarts ends a study

_T = TypeVar("_T")
_Attempted = TypeVar("_Attempted", Sent, Asked)
DeliverWorkflow = Callable[[JsonObject], None]
"""A workflow whose argument is a `DeliveryBatch` as JSON."""


def answer_workflow(question_id: str) -> str:
    """Return the id of the workflow that sends an answer: the same answer is sent once."""
    return f"{ANSWER}:{question_id}"


def queue_of(destination: str) -> str:
    """Return the name of a destination's queue of deliveries."""
    return f"deliver {destination}"


def queues_of(destination: DestinationSettings) -> list[str]:
    """Return the names of all queues of a destination."""
    name = destination.name
    return [queue_of(name), commit_queue_of(name)] if can_confirm(destination) else [queue_of(name)]


def commit_queue_of(destination: str) -> str:
    """Return the name of a destination's queue for storage commitment; waiting there delays no delivery."""
    return f"commit {destination}"


def deliveries_of(argument: object) -> tuple[Delivery, ...]:
    """Return the deliveries of a workflow `deliver` or `commit` by its argument; none of others. Raises OtherForm."""
    if not isinstance(argument, Mapping):
        return ()
    return files.made(partial(decode, DeliveryBatch), dict(argument), place="table workflow_status").deliveries


def study_of(argument: object) -> str | None:
    """Return the study of a workflow by its first argument: a study UID, or a batch of deliveries."""
    if deliveries := deliveries_of(argument):
        return deliveries[0].study_uid
    return argument if isinstance(argument, str) and is_uid(argument) else None


def enqueue_delivery(deliver: DeliverWorkflow, batch: DeliveryBatch, *, wait_seconds: float | None = None) -> None:
    """Queue a batch at the place of its priority; one that yields waits for a moment."""
    place = delivery_place(batch.started, batch.deliveries[0].priority)
    delay_seconds = _GIVE_WAY_SECONDS if batch.has_given_way else wait_seconds
    _enqueue(queue_of(batch.destination), deliver, encode(batch), place=place, delay_seconds=delay_seconds)


def _enqueue(
    queue: str,
    workflow: Callable[..., None],
    *arguments: Json,
    place: int | None = None,
    delay_seconds: float | None = None,
) -> None:
    """Queue a workflow; place: the lowest runs first."""
    with SetEnqueueOptions(priority=place, delay_seconds=delay_seconds):
        DBOS.enqueue_workflow(queue, workflow, *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoints:
    """Runs steps of workflows, and records their results; on_step: called with the name of each step that ran."""

    running: RunningSteps
    on_step: Callable[[str], None]

    def run(self, step: str, kind: type[_T], work: Callable[[], _T]) -> _T:
        """Run a step and return its result; after a crash, return the recorded result."""
        return decode(kind, self._recorded(step, work))

    def run_or_park(self, step: str, kind: type[_T], work: Callable[[], _T | None]) -> _T | None:
        """Like `run`, for a step that may return None: it has parked its study, or has found no work."""
        result = self._recorded(step, work)
        return None if result is None else decode(kind, result)

    def enqueue_all(self, deliver: DeliverWorkflow, queued: Queued, of: str) -> None:
        """Queue a step's deliveries once for each destination; of: the study or question of the outputs."""
        for destination, deliveries in queued.deliveries.items():
            with SetWorkflowID(f"deliver:{destination}:{of}"):
                enqueue_delivery(deliver, DeliveryBatch(deliveries=deliveries, started=queued.started))
            self.on_step("queue")

    def _recorded(self, step: str, work: Callable[[], object]) -> object:
        # Inside the executor's step, so that an error is never recorded as its result.
        result = DBOS.run_step({"name": step}, lambda: self.running.run(lambda: _as_json(work())))
        self.on_step(step)
        return result


def _as_json(result: object) -> object:
    return encode(result) if is_dataclass(result) and not isinstance(result, type) else result


def register(
    sending: Sending,
    steps: Steps | None,
    objects: ObjectSteps | None,
    *,
    running: RunningSteps,
    on_step: Callable[[str], None],
) -> tuple[DeliverWorkflow, Mapping[str, Park]]:
    """Register the workflows with the executor, the reading ones only if there are `steps` and `objects`.

    Returns the sending workflow, and by name of a workflow the function that parks its work (see `lost_workflows`).
    """
    checkpoints = _Checkpoints(running=running, on_step=on_step)
    deliver = _register_delivery(sending, checkpoints)
    park: dict[str, Park] = dict.fromkeys(
        (DELIVER, COMMIT),
        lambda arguments, reason: sending.park_lost(decode(DeliveryBatch, arguments[0]), reason=reason),
    )
    if steps is not None and objects is not None:
        _register_reading(steps, checkpoints, deliver=deliver)
        answers = AnswerSteps(
            pipeline=lambda: steps.pipeline,
            ledger=steps.ledger,
            metrics=steps.metrics,
            destinations=steps.destinations,
        )
        _register_answers(answers, objects, checkpoints, deliver=deliver)
        park |= dict.fromkeys(
            (QUIET, GATHER, STUDY), lambda arguments, reason: steps.park_lost(str(arguments[0]), reason=reason)
        )
        park |= {ANSWER: partial(_refuse, answers), QUESTION: partial(_refuse, objects)}
    return deliver, park


def _refuse(steps: AnswerSteps | ObjectSteps, arguments: Sequence[object], reason: str) -> None:
    steps.refuse(str(arguments[0]), str(arguments[1]), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The result of the step `plan`: the next round of a study, or that another workflow has the study."""

    round: Round | None = None
    is_busy: bool = False


def _register_reading(steps: Steps, checkpoints: _Checkpoints, *, deliver: DeliverWorkflow) -> None:
    """Register `quiet` and `study`, which queue each other and deliveries, and `gather`, which queues `quiet`."""

    def plan_alone(study_uid: str, workflow: str) -> Planned:
        is_claimed = steps.claim(study_uid, workflow, is_over=_is_over)
        return Planned(round=steps.plan(study_uid)) if is_claimed else Planned(is_busy=True)

    @DBOS.workflow(name=STUDY, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def study(study_uid: str, times_busy: int = 0) -> None:
        workflow = str(DBOS.workflow_id)
        planned = checkpoints.run("plan", Planned, lambda: plan_alone(study_uid, workflow))
        if planned.is_busy:  # waits outside the slot, which another study can use
            delay_seconds = min(_BUSY_SECONDS * 2.0**times_busy, _LONGEST_BUSY_SECONDS)
            _enqueue(QUIET, quiet, study_uid, times_busy + 1, delay_seconds=delay_seconds)
        if (plan := planned.round) is None:
            return
        outcomes = []
        for file in plan.files:
            outcome = checkpoints.run_or_park("read", str, partial(steps.read, study_uid, file))
            if outcome is None:
                return
            outcomes.append(outcome)
        written = checkpoints.run_or_park("write", WrittenRound, lambda: steps.write(plan))
        if written is None:
            return
        of = f"{study_uid}:{plan.number}:{plan.created_at.isoformat()}"
        checkpoints.enqueue_all(deliver, written.queued, of)
        is_awaited = partial(_is_awaited, workflow=workflow)
        finish = partial(steps.finish, plan, outcomes, written, is_awaited=is_awaited)
        if checkpoints.run("finish", bool, finish):
            _enqueue(QUIET, quiet, study_uid, delay_seconds=_BUSY_SECONDS)

    @DBOS.workflow(name=QUIET, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def quiet(study_uid: str, times_busy: int = 0) -> None:
        place = checkpoints.run_or_park("place", int, lambda: steps.place(study_uid))
        if place is None:
            return
        _enqueue(STUDIES, study, study_uid, times_busy, place=place)
        checkpoints.on_step("ready")

    @DBOS.workflow(name=GATHER, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def gather(study_uid: str, correction_id: str) -> None:
        if checkpoints.run("gather", bool, lambda: steps.gather(study_uid, correction_id)):
            _enqueue(QUIET, quiet, study_uid)
            checkpoints.on_step("queue")


def _register_answers(
    answers: AnswerSteps, objects: ObjectSteps, checkpoints: _Checkpoints, *, deliver: DeliverWorkflow
) -> None:
    """Register `answer`, which queues deliveries, and `question`, which queues answers, or itself without its film."""

    @DBOS.workflow(name=ANSWER, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def answer(study_uid: str, question_id: str) -> None:
        queued = checkpoints.run("answer", Queued, lambda: answers.write(study_uid, question_id))
        checkpoints.enqueue_all(deliver, queued, f"answer:{question_id}")

    @DBOS.workflow(name=QUESTION, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def question(study_uid: str, sop_instance_uid: str) -> None:
        found = checkpoints.run("look", Looked, lambda: objects.look(study_uid, sop_instance_uid))
        if found.wait_seconds is not None:
            _enqueue(QUIET, question, study_uid, sop_instance_uid, delay_seconds=found.wait_seconds)
        for question_id in found.questions:
            with SetWorkflowID(answer_workflow(question_id)):
                _enqueue(QUIET, answer, study_uid, question_id)
            checkpoints.on_step("queue")


def _register_delivery(sending: Sending, checkpoints: _Checkpoints) -> DeliverWorkflow:
    """Register `deliver` and `commit`, each of which may queue the other."""

    def run(step: str, kind: type[_Attempted], batch: DeliveryBatch, work: Callable[[int], _Attempted]) -> _Attempted:
        """Run a step with the number of an attempt. While the destination is down, wait in the slot, and run it again.

        This limits futile requests. An object that fails again although the destination answers probes may be the
        cause, so it is delayed.
        """
        result = checkpoints.run(step, kind, partial(work, batch.attempt))
        if not result.is_down:
            return result
        probe = partial(sending.probe, batch.destination, batch.started)
        while not checkpoints.run("probe", bool, probe):
            pass
        return checkpoints.run(step, kind, partial(work, batch.attempt + 1))

    @DBOS.workflow(name=DELIVER, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def deliver(argument: JsonObject) -> None:
        batch = decode(DeliveryBatch, argument)
        later: list[Delivery] = []
        sent: list[Delivery] = []
        wait_seconds = sent_at = 0.0
        may_give_way = not batch.has_given_way
        for number, delivery in enumerate(batch.deliveries):
            send = partial(sending.send, delivery, started=batch.started, may_give_way=may_give_way)
            result = run("send", Sent, batch, send)
            if result.outcome is Outcome.GAVE_WAY:
                enqueue_delivery(deliver, replace(batch, deliveries=batch.deliveries[number:], has_given_way=True))
                break
            if result.outcome in (Outcome.DELAYED, Outcome.DOWN):
                later.append(delivery)
                wait_seconds = result.wait_seconds
            elif result.to_confirm_since is not None:
                sent.append(delivery)
                sent_at = result.to_confirm_since
        if later:  # leaves its slot: an object that is rejected for now delays no other
            next_batch = DeliveryBatch(deliveries=tuple(later), started=batch.started, attempt=batch.attempt + 1)
            enqueue_delivery(deliver, next_batch, wait_seconds=wait_seconds)
        if sent:
            to_confirm = DeliveryBatch(deliveries=tuple(sent), started=sent_at)
            _enqueue(commit_queue_of(batch.destination), commit, encode(to_confirm))

    @DBOS.workflow(name=COMMIT, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def commit(argument: JsonObject) -> None:
        batch = decode(DeliveryBatch, argument)
        asked = run("commit", Asked, batch, partial(sending.commit, batch.deliveries, started=batch.started))
        if asked.again:
            again = DeliveryBatch(deliveries=asked.again, started=asked.at)
            enqueue_delivery(deliver, again, wait_seconds=asked.wait_seconds)
        if asked.open:  # waits outside the slot
            left = replace(batch, deliveries=asked.open, attempt=batch.attempt + 1)
            queue = commit_queue_of(batch.destination)
            _enqueue(queue, commit, encode(left), delay_seconds=asked.wait_seconds)

    return deliver


def _is_awaited(study_uid: str, *, workflow: str) -> bool:
    """Whether a workflow other than this one will process a study."""
    return any(
        status.workflow_id != workflow and status.input and status.input["args"][0] == study_uid
        for status in DBOS.list_workflows(status=[*OPEN], name=[QUIET, STUDY], load_output=False)
    )


def _is_over(workflow: str) -> bool:
    """Whether a workflow has ended or is unknown to the executor."""
    status = DBOS.get_workflow_status(workflow)
    return status is None or status.status not in OPEN
