"""The steps of a round: plain JSON in and out, timed, counted, noted in the ledger.

A step that fails for good parks its study and says so in its result. What it still raises, a full disk or a lost
database, ends the process (`workflow`). Every step may be repeated: one that was cut short is run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TypeVar, cast

from node import log, urgency
from node.config import DestinationSettings
from node.domain import Delivery, DeliveryState, OutputObject
from node.errors import NodeError, is_of_disk, where
from node.ledger import Ledger, is_away
from node.metrics import Guarded, Metrics
from node.pipeline import Pipeline, Round
from node.sending import Json
from node.spool import sop_instance_uid_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What the workflows do, in order: place, claim, plan, read each file, write, deliver each output, finish."""

    pipeline: Pipeline
    ledger: Ledger
    metrics: Metrics
    destinations: Mapping[str, DestinationSettings]
    stat_seconds: float

    def place(self, study_uid: str) -> int | None:
        """Say where a study stands in the queue; the lower is read first. None when it had to be parked."""

        def work() -> int:
            return urgency.place(self.pipeline.waiting(study_uid), stat_seconds=self.stat_seconds)

        return self._guarded("place", study_uid, work, otherwise=None)

    def claim(self, study_uid: str, workflow: str, *, is_over: Callable[[str], bool]) -> bool:
        """Let a workflow have a study to itself; false while another one has it. Asked again, the answer is the same.

        is_over: whether a workflow has ended, or nobody knows of it
        """
        holder = self.ledger.claim(study_uid, holder=workflow)
        if holder != workflow and is_over(holder):
            holder = self.ledger.claim(study_uid, holder=workflow, instead_of=holder)
        return holder == workflow

    def plan(self, study_uid: str) -> Json | None:
        """Fix what a round covers; None when there is nothing new or the study had to be parked."""

        def work() -> Json | None:
            with self.metrics.timed("plan"):
                planned = self.pipeline.plan(study_uid)
            self.ledger.set_study(study_uid, "reading" if planned else "finished")
            if planned is None:
                return None
            log.get().info("study.ready", study=study_uid, round=planned.number, instances=len(planned.files))
            return {**asdict(planned), "created_at": planned.created_at.isoformat()}

        return self._guarded("plan", study_uid, work, otherwise=None)

    def read(self, study_uid: str, file: str) -> str | None:
        """Answer one file; the outcome, or None when the study had to be parked."""

        def work() -> str:
            outcome = self.pipeline.read(study_uid, file)
            self.metrics.films.labels(outcome).inc()
            log.get().info("film.decided", study=study_uid, sop_instance_uid=sop_instance_uid_of(file), reason=outcome)
            return outcome

        return self._guarded("read", study_uid, work, otherwise=None)

    def write(self, plan: Json) -> Json | None:
        """Write the outputs of a round and note who receives each; None when the study had to be parked."""
        planned = _round(plan)

        def work() -> Json:
            with self.metrics.timed("write"):
                outputs = self.pipeline.write(planned)
            rounds = self.pipeline.spool.rounds(planned.study_uid)
            earlier = {output.sop_instance_uid for mark in rounds for output in mark.outputs}
            deliveries = {
                name: [
                    delivery
                    for output in outputs
                    if output.kind in settings.outputs and self._is_open(delivery := delivery_of(name, output), earlier)
                ]
                for name, settings in self.destinations.items()
            }
            for delivery in (one for several in deliveries.values() for one in several):
                self.ledger.add_delivery(delivery)
            return {
                "outputs": [asdict(output) for output in outputs],
                "deliveries": {
                    name: [asdict(one) for one in several] for name, several in deliveries.items() if several
                },
                "started": time.time(),
            }

        return self._guarded("write", planned.study_uid, work, otherwise=None)

    def _is_open(self, delivery: Delivery, earlier: Collection[str]) -> bool:
        """Whether this round is to send an output: what exists is not sent a second time.

        earlier: UIDs of what earlier rounds wrote; they send it, and what the janitor removed since was sent to all
        """
        state = self.ledger.delivery_state(delivery)
        if state is None:
            return self.pipeline.spool.output_path(delivery).exists()
        return state is DeliveryState.WAITING and delivery.sop_instance_uid not in earlier

    def finish(self, plan: Json, outcomes: list[str], written: Json) -> None:
        """Mark a round as finished; written: what `write` returned."""
        planned = _round(plan)

        def work() -> None:
            outputs = [OutputObject(**output) for output in cast(list[dict[str, str]], written["outputs"])]
            with self.metrics.timed("finish"):
                self.pipeline.finish(planned, outputs)
            is_read = not self.pipeline.spool.has_unread(planned.study_uid)
            self.ledger.set_study(planned.study_uid, "finished" if is_read else "receiving")
            identity = self.pipeline.reader.identity
            log.get().info(
                "study.finished",
                study=planned.study_uid,
                round=planned.number,
                instances=len(planned.files),
                read=outcomes.count("read"),
                not_processed=sum(outcome != "read" and not outcome.startswith("left:") for outcome in outcomes),
                outputs=len(outputs),
                seconds=round(time.time() - planned.created_at.timestamp(), 3),
                model=f"{identity.name} {identity.version}",
                prompts=self.pipeline.prompts.name,
            )

        self._guarded("finish", planned.study_uid, work, otherwise=None)

    def _guarded(self, stage: Guarded, study_uid: str, work: Callable[[], _T], *, otherwise: _T) -> _T:
        """Run a step's work; whatever it raises parks the study with its class and place, never its text.

        A disk or a database that fails is no matter of one study: that is raised, and ends the process.
        """
        try:
            return work()
        except Exception as error:  # a boundary: one strange study must not stop the others
            if is_of_disk(error) or is_away(error):
                raise
            is_foreseen = isinstance(error, NodeError)
            self.metrics.failures.labels(stage, "foreseen" if is_foreseen else "unforeseen").inc()
            reason = str(error) if is_foreseen else where(error)
            log.get().error("study.parked", study=study_uid, stage=stage, reason=reason)
            self.ledger.set_study(study_uid, "parked", stage=stage, reason=reason)
            return otherwise


def _round(plan: Json) -> Round:
    return Round(
        study_uid=str(plan["study_uid"]),
        number=int(str(plan["number"])),
        files=tuple(str(file) for file in cast(list[object], plan["files"])),
        created_at=datetime.fromisoformat(str(plan["created_at"])),
    )


def delivery_of(destination: str, output: OutputObject) -> Delivery:
    """One output on its way to one destination."""
    return Delivery(
        destination=destination,
        study_uid=output.study_uid,
        sop_instance_uid=output.sop_instance_uid,
        kind=output.kind,
    )
