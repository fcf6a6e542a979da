"""The durable workflows, and the order of their steps. Queues and processes are the executor's.

    quiet    waits until no more files of a study arrive (a durable debounce), then gives it a place in the queue
    gather   waits after a correction; releases all that wait in its study, if that was the last, and queues `quiet`
    study    plan > read each file > write > queue one delivery per destination > finish
    answer   write the objects of one answer that a person sends > queue one delivery per destination
    question answer what the object of a workstation asks > queue one `answer` per question; looks again for its film
    deliver  sends its outputs in order until each is sent or parked; waits durably between attempts
    commit   asks a destination for storage commitment until it has answered; sends again what was lost

Rounds of one study run one after another: each round claims its study first, and a round that finds another one
running goes back to `quiet` for a moment. A destination that is down fills only the slots of its own queue. An object
that its destination rejects for now waits outside the slots. Critical outputs have the first places in the queue, and
an output that has a slot already gives way to them once, for a moment. Workflow code is deterministic: clock, disk and
network are used in steps only, and arguments are JSON without patient data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, Literal, TypeVar

from dbos import DBOS, SetEnqueueOptions, SetWorkflowID

from node import trace
from node.codec import decode, encode
from node.deliver.delivery import Sending
from node.deliver.kinds import can_confirm
from node.deliver.results import Asked, DeliveryJson, Queued, Sent
from node.domain import JsonObject, is_uid
from node.jobs.answer_steps import AnswerSteps
from node.jobs.lost import Park
from node.jobs.object_questions import ObjectSteps
from node.jobs.queue_places import delivery_place
from node.jobs.round_steps import Steps, WrittenRound
from node.jobs.running_steps import RunningSteps
from node.rounds.planned import Round
from node.settings.destinations import DestinationSettings

QUIET: Final = "quiet"
GATHER: Final = "gather"
STUDY: Final = "study"
DELIVER: Final = "deliver"
COMMIT: Final = "commit"
ANSWER: Final = "answer"
QUESTION: Final = "question"
STUDIES: Final = "studies"

_BUSY_SECONDS: Final = 1.0  # wait while another round of the study runs; each time twice as long
_LONGEST_BUSY_SECONDS: Final = 8.0
_GIVE_WAY_SECONDS: Final = 1.0  # wait while critical outputs are sent
OPEN: Final = ("PENDING", "ENQUEUED", "DELAYED")
"""The states of a workflow that has not ended."""

_RECOVERIES: Final = 1_000_000  # no number of restarts ends a study

_T = TypeVar("_T")
QuietWorkflow = Callable[[str], None]
AnswerWorkflow = Callable[[str, str], None]
DeliverWorkflow = Callable[[list[DeliveryJson], int, float, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The workflow that sends, and for each workflow what parks its work if it is lost (`lost`)."""

    deliver: DeliverWorkflow
    park: Mapping[str, Park]


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


def enqueue_delivery(
    deliver: DeliverWorkflow,
    deliveries: list[DeliveryJson],
    *,
    attempt: int = 1,
    started: float,
    wait_seconds: float | None = None,
    has_given_way: bool = False,
) -> None:
    """Queue outputs of one study for one destination, in the place that their priority gives them.

    has_given_way: they just gave way to a critical output; they wait for a moment, and do not give way again
    """
    first = deliveries[0]
    place = delivery_place(started, first["priority"])
    delay_seconds = _GIVE_WAY_SECONDS if has_given_way else wait_seconds
    arguments = (deliveries, attempt, started, has_given_way)
    _enqueue(queue_of(first["destination"]), deliver, *arguments, place=place, delay_seconds=delay_seconds)


def _enqueue_all(deliver: DeliverWorkflow, queued: Queued, of: str, checkpoints: _Checkpoints) -> None:
    """Queue what a step left to be sent, for each destination once; of: what the outputs were written for."""
    for destination, deliveries in queued.deliveries.items():
        with SetWorkflowID(f"deliver:{destination}:{of}"):
            enqueue_delivery(deliver, [asdict(delivery) for delivery in deliveries], started=queued.started)
        checkpoints.on_step("queue")


def _enqueue(
    queue: str,
    workflow: Callable[..., None],
    *arguments: object,
    place: int | None = None,
    delay_seconds: float | None = None,
) -> None:
    """Queue a workflow; place: the lowest is run first."""
    with SetEnqueueOptions(priority=place, delay_seconds=delay_seconds):
        DBOS.enqueue_workflow(queue, workflow, *arguments)


def register(
    sending: Sending,
    steps: Steps | None,
    objects: ObjectSteps | None,
    *,
    running: RunningSteps,
    on_step: Callable[[str], None],
) -> Registered:
    """Register the workflows with the executor, the reading ones only if there are `steps`."""
    checkpoints = _Checkpoints(running=running, on_step=on_step)
    deliver = _register_delivery(sending, checkpoints)
    park: dict[str, Park] = dict.fromkeys((DELIVER, COMMIT), partial(_park_deliveries, sending))
    if steps is not None:
        quiet = _register_reading(steps, checkpoints, deliver=deliver)
        _register_gathering(steps, checkpoints, quiet=quiet)
        answers = AnswerSteps(
            pipeline=lambda: steps.pipeline,
            ledger=steps.ledger,
            metrics=steps.metrics,
            destinations=steps.destinations,
        )
        answer = _register_answers(answers, checkpoints, deliver=deliver)
        park |= dict.fromkeys((QUIET, GATHER, STUDY), partial(_park_study, steps))
        park[ANSWER] = partial(_park_question, answers)
        if objects is not None:
            _register_questions(objects, checkpoints, answer=answer)
            park[QUESTION] = partial(_park_question, objects)
    return Registered(deliver=deliver, park=park)


def _park_deliveries(sending: Sending, arguments: Sequence[object], reason: str) -> None:
    deliveries = decode(list[DeliveryJson], arguments[0])
    sending.park_lost(deliveries, decode(int, arguments[1]), reason=reason)


def _park_study(steps: Steps, arguments: Sequence[object], reason: str) -> None:
    steps.park_lost(str(arguments[0]), reason=reason)


def _park_question(steps: AnswerSteps | ObjectSteps, arguments: Sequence[object], reason: str) -> None:
    steps.refuse(str(arguments[0]), str(arguments[1]), reason=reason)


def study_of(argument: object) -> str | None:
    """Return the study that a step or workflow is about: its first argument is a UID, or a round or deliveries."""
    if isinstance(argument, list):
        argument = argument[0] if argument else None
    if isinstance(argument, dict):
        argument = argument.get("study_uid")
    return argument if isinstance(argument, str) and is_uid(argument) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoints:
    """Runs steps of workflows, and records their results; on_step: gets the name of each step that was run."""

    running: RunningSteps
    on_step: Callable[[str], None]

    def run(self, name: str, work: Callable[..., _T], *arguments: object) -> _T:
        """Run a step; after a crash, return the result that was recorded."""
        # Inside the executor's step, so that an error is never recorded as the step's result.
        with trace.of_study(study_of(arguments[0])):
            result = DBOS.run_step({"name": name}, lambda: self.running.run(lambda: work(*arguments)))
        self.on_step(name)
        return result


def _register_reading(steps: Steps, checkpoints: _Checkpoints, *, deliver: DeliverWorkflow) -> QuietWorkflow:
    """Register `quiet` and `study`, which queue each other and deliveries."""

    def plan_alone(study_uid: str, workflow: str) -> JsonObject | Literal["busy"] | None:
        if not steps.claim(study_uid, workflow, is_over=_is_over):
            return "busy"
        planned = steps.plan(study_uid)
        return None if planned is None else encode(planned)

    def write(plan: JsonObject) -> JsonObject | None:
        written = steps.write(decode(Round, plan))
        return None if written is None else encode(written)

    def finish(plan: JsonObject, outcomes: list[str], written: JsonObject, workflow: str) -> bool:
        return steps.finish(
            decode(Round, plan),
            outcomes,
            decode(WrittenRound, written),
            is_awaited=lambda study_uid: _is_awaited(study_uid, workflow),
        )

    @DBOS.workflow(name=STUDY, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def study(study_uid: str, times_busy: int = 0) -> None:
        plan = checkpoints.run("plan", plan_alone, study_uid, DBOS.workflow_id)
        if plan is None:
            return
        if plan == "busy":  # does not wait in a slot, which another study can use
            delay_seconds = min(_BUSY_SECONDS * 2.0**times_busy, _LONGEST_BUSY_SECONDS)
            _enqueue(QUIET, quiet, study_uid, times_busy + 1, delay_seconds=delay_seconds)
            return
        planned, outcomes = decode(Round, plan), []
        for file in planned.files:
            outcome = checkpoints.run("read", steps.read, study_uid, file)
            if outcome is None:
                return
            outcomes.append(outcome)
        written = checkpoints.run("write", write, plan)
        if written is None:
            return
        of = f"{study_uid}:{planned.number}:{planned.created_at.isoformat()}"
        _enqueue_all(deliver, decode(Queued, written), of, checkpoints)
        workflow = DBOS.workflow_id
        if checkpoints.run("finish", finish, plan, outcomes, written, workflow):
            _enqueue(QUIET, quiet, study_uid, delay_seconds=_BUSY_SECONDS)

    @DBOS.workflow(name=QUIET, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def quiet(study_uid: str, times_busy: int = 0) -> None:
        place = checkpoints.run("place", steps.place, study_uid)
        if place is None:
            return
        _enqueue(STUDIES, study, study_uid, times_busy, place=place)
        checkpoints.on_step("ready")

    return quiet


def _register_gathering(steps: Steps, checkpoints: _Checkpoints, *, quiet: QuietWorkflow) -> None:
    """Register `gather`, which queues `quiet`."""

    @DBOS.workflow(name=GATHER, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def gather(study_uid: str, correction_id: str) -> None:
        if checkpoints.run("gather", steps.gather, study_uid, correction_id):
            _enqueue(QUIET, quiet, study_uid)
            checkpoints.on_step("queue")


def _register_answers(steps: AnswerSteps, checkpoints: _Checkpoints, *, deliver: DeliverWorkflow) -> AnswerWorkflow:
    """Register `answer`, which queues deliveries."""

    @DBOS.workflow(name=ANSWER, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def answer(study_uid: str, question_id: str) -> None:
        written = checkpoints.run("answer", lambda *asked: encode(steps.write(*asked)), study_uid, question_id)
        _enqueue_all(deliver, decode(Queued, written), f"answer:{question_id}", checkpoints)

    return answer


def _register_questions(steps: ObjectSteps, checkpoints: _Checkpoints, *, answer: AnswerWorkflow) -> None:
    """Register `question`, which queues answers, or itself while its film is not here."""

    @DBOS.workflow(name=QUESTION, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def question(study_uid: str, sop_instance_uid: str) -> None:
        found = checkpoints.run("look", steps.look, study_uid, sop_instance_uid)
        if "wait" in found:
            _enqueue(QUIET, question, study_uid, sop_instance_uid, delay_seconds=found["wait"])
            return
        for question_id in found["questions"]:
            with SetWorkflowID(answer_workflow(question_id)):
                _enqueue(QUIET, answer, study_uid, question_id)
            checkpoints.on_step("queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempts:
    """What the workflows of deliveries do again when a destination was down."""

    sending: Sending
    checkpoints: _Checkpoints

    def send(self, delivery: DeliveryJson, attempt: int, started: float, *, may_give_way: bool) -> Sent:
        """Send one object. While its destination is down, wait in the slot, so that few objects are sent in vain.

        If sending fails again although the destination answers probes, the object may be the cause: it is delayed.
        """
        send = self.sending.send
        result = self.checkpoints.run("send", send, delivery, attempt, started, may_give_way)
        if result["outcome"] == "down":
            self._wait_for(delivery["destination"], started)
            result = self.checkpoints.run("send", send, delivery, attempt + 1, started, may_give_way)
        return result

    def ask(self, deliveries: list[DeliveryJson], attempt: int, started: float) -> Asked:
        """Ask for storage commitment. While the destination is down, wait in the slot: few requests fail in vain."""
        asked = self.checkpoints.run("commit", self.sending.commit, deliveries, attempt, started)
        if not asked["down"]:
            return asked
        self._wait_for(deliveries[0]["destination"], started)
        return self.checkpoints.run("commit", self.sending.commit, deliveries, attempt + 1, started)

    def _wait_for(self, destination: str, started: float) -> None:
        while not self.checkpoints.run("probe", self.sending.probe, destination, started):
            pass


def _register_delivery(sending: Sending, checkpoints: _Checkpoints) -> DeliverWorkflow:
    """Register `deliver` and `commit`, each of which may queue the other."""
    attempts = _Attempts(sending=sending, checkpoints=checkpoints)

    @DBOS.workflow(name=DELIVER, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def deliver(deliveries: list[DeliveryJson], attempt: int, started: float, has_given_way: bool = False) -> None:
        later, sent, wait, sent_at = [], [], 0.0, 0.0
        for number, delivery in enumerate(deliveries):
            result = attempts.send(delivery, attempt, started, may_give_way=not has_given_way)
            if result["outcome"] == "gave_way":
                rest = deliveries[number:]
                enqueue_delivery(deliver, rest, attempt=attempt, started=started, has_given_way=True)
                break
            if result["outcome"] in ("delayed", "down"):
                later.append(delivery)
                wait = result["wait"]
            elif "commit" in result:
                sent.append(delivery)
                sent_at = result["commit"]
        if later:  # leaves its slot: an object that is rejected for now delays no other
            enqueue_delivery(deliver, later, attempt=attempt + 1, started=started, wait_seconds=wait)
        if sent:
            _enqueue(commit_queue_of(sent[0]["destination"]), commit, sent, 1, sent_at)

    @DBOS.workflow(name=COMMIT, max_recovery_attempts=_RECOVERIES)
    @checkpoints.running.guarded
    def commit(deliveries: list[DeliveryJson], attempt: int, started: float) -> None:
        asked = attempts.ask(deliveries, attempt, started)
        wait = asked["wait"]
        if again := asked["again"]:
            enqueue_delivery(deliver, again, started=asked["now"], wait_seconds=wait)
        if left := asked["open"]:  # does not wait in a slot
            queue = commit_queue_of(left[0]["destination"])
            _enqueue(queue, commit, left, attempt + 1, started, delay_seconds=wait)

    return deliver


def _is_awaited(study_uid: str, workflow: str) -> bool:
    """Whether a workflow other than this one will process a study."""
    return any(
        status.workflow_id != workflow and status.input and status.input["args"][0] == study_uid
        for status in DBOS.list_workflows(status=[*OPEN], name=[QUIET, STUDY], load_output=False)
    )


def _is_over(workflow: str) -> bool:
    """Whether a workflow has ended or is unknown to the executor."""
    status = DBOS.get_workflow_status(workflow)
    return status is None or status.status not in OPEN
