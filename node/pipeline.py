"""Makes the stored outputs of a study: load from the spool, decide, write. Every call may be repeated.

`node.store.study_facts` loads, `node.rounds` decides. Workflows pass only UIDs, file names and small numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from node.domain import About, Film, OutputObject
from node.errors import GiveUp
from node.hl7.order import Order
from node.orders.store import OrderStore
from node.output_kinds import messages_in
from node.outputs import batches, impression, writers
from node.rounds import round_plan
from node.rounds.films import FilmReader
from node.rounds.objects import Wanted, Write, WrittenObject, objects_of
from node.rounds.round_plan import Round
from node.rounds.study_report import AnsweredPart, Answers, answers_of
from node.store.interrupted_work import MOST_INTERRUPTIONS
from node.store.received import sop_instance_uid_of
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.store.study_facts import StudyFacts, load


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutputs:
    """What a round wrote; films: what it is about.

    mark: of the round once it is finished; parked films stay unread
    unmatched: how many messages lack order numbers, because the order is not known to be for their patient
    """

    mark: RoundMark
    films: tuple[Film, ...]
    unmatched: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """The decisions of a round; orders: the order of each part; objects: written one by one."""

    answers: Answers
    orders: Sequence[Order | None]
    objects: Iterator[WrittenObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The steps of a round, on the spool. Each may be repeated after a crash.

    films: reads films, and stores the answers
    kinds: the kinds of outputs to write
    has_ratio: whether outputs have the cardiothoracic ratio of a film
    write_batch: writes objects, here or in another process
    """

    films: FilmReader
    orders: OrderStore
    zone: ZoneInfo
    kinds: tuple[str, ...]
    has_ratio: bool = True
    write_batch: Write = batches.write_batch

    @property
    def spool(self) -> Spool:
        """The spool, with the films."""
        return self.films.spool

    def plan(self, study_uid: str, *, destinations: Mapping[str, tuple[str, ...]] | None = None) -> Round | None:
        """Fix the files of the next round; None when no file is unread. destinations: see `Round`."""
        facts = load(self.spool, study_uid)
        return round_plan.plan(facts, at=datetime.now(UTC), destinations=destinations or {})

    def read(self, study_uid: str, file: str) -> str:
        """Answer one file and store the answer.

        Returns `read`, the reason why the film was not read, or `left:` and the reason for an object without an answer.
        """
        facts = load(self.spool, study_uid, keys=[self.films.key(file)])
        if sop_instance_uid_of(file) in facts.rejected:
            return "left:rejected"
        film, left = self.films.answer(facts, file)
        if film is None:
            return f"left:{left}"
        return "read" if film.reason is None else str(film.reason)

    def answers(self, plan: Round) -> Answers:
        """Collect the answers of a round, and the header of each film; its picture is decoded if a writer asks for it.

        Reads a film again if its answer came from another model or program version, as after an upgrade. A film that a
        rejection note rejects is not read, and is not in the report.
        """
        return self._answers(plan, self._facts(plan))

    def write(self, plan: Round) -> RoundOutputs:
        """Write and store every output of a round; reports name those that they replace.

        Returns them in the order in which they are to be sent: reports on films with a critical finding first.
        """
        facts = self._facts(plan)
        made = self._made(plan, facts, kinds=self.kinds)
        earlier = [output for mark in facts.rounds for output in mark.outputs]
        known = {output.sop_instance_uid for output in earlier}
        outputs = []
        for output, content in self._counted(plan.study_uid, made.objects):
            if output.sop_instance_uid not in known:  # else an earlier round wrote it: it exists, or was delivered
                self.spool.keep_output(output, content)
            outputs.append(output)
        report, parts, parked = made.answers.report, made.answers.parts, made.answers.parked
        critical = impression.critical_films(report)
        outputs.sort(key=lambda output: output.subject.about is About.RATIO or output.subject.film not in critical)
        return RoundOutputs(
            mark=RoundMark(
                number=plan.number,
                created_at=plan.created_at,
                files=tuple(file for file in plan.files if file not in parked),
                outputs=writers.with_receivers(outputs, plan.destinations, known=earlier),
                parked={file: str(reason) for file, reason in parked.items()},
                corrections=plan.corrections,
                parts=tuple(tuple(part.headers) for part in parts) if len(parts) > 1 else (),
                destinations=plan.destinations,
            ),
            films=report.films,
            unmatched=sum(
                order is None and self.orders.is_known(study_uid=plan.study_uid, accession=part.accession)
                for part, order in zip(parts, made.orders, strict=True)
                if messages_in(self.kinds)
            ),
        )

    def rewrite(self, study_uid: str) -> None:
        """Write the missing or damaged outputs of finished rounds again, if the round still yields the same outputs.

        The same outputs are written again, also if destinations ask for others now.
        """
        for mark in self.spool.rounds(study_uid):
            lost = {output for output in mark.outputs if self.spool.output(output) is None}
            if not lost:
                continue
            plan, kinds = round_plan.again(study_uid, mark), {output.kind for output in mark.outputs}
            made = self._made(plan, self._facts(plan), kinds=kinds, instead_of=mark.outputs)
            for output, content in self._counted(study_uid, made.objects):
                if output in lost:
                    self.spool.keep_output(output, content)

    def _facts(self, plan: Round) -> StudyFacts:
        """Load a round's facts of its study, with the answers to its films."""
        facts = load(self.spool, plan.study_uid, keys=map(self.films.key, plan.files))
        return round_plan.known_to(plan, facts)

    def _made(
        self,
        plan: Round,
        facts: StudyFacts,
        *,
        kinds: Collection[str],
        instead_of: Collection[OutputObject] | None = None,
    ) -> _Made:
        """Read films and orders, and decide which outputs to write; same arguments as `Wanted`."""
        answers = self._answers(plan, facts)
        orders = [self._order(plan, part) if messages_in(kinds) else None for part in answers.parts]
        wanted = Wanted(
            kinds=kinds, orders=orders, destinations=plan.destinations, zone=self.zone, instead_of=instead_of
        )
        objects = objects_of(answers, facts, wanted, content_of=self.spool.output, write=self.write_batch)
        return _Made(answers=answers, orders=orders, objects=objects)

    def _answers(self, plan: Round, facts: StudyFacts) -> Answers:
        films = self.films
        return answers_of(
            plan,
            facts,
            films.of_round(plan, facts),
            model=films.reader.identity,
            prompts=films.prompts,
            has_ratio=self.has_ratio,
            nobodys=self.orders.nobodys,
        )

    def _counted(self, study_uid: str, objects: Iterator[WrittenObject]) -> Iterator[WrittenObject]:
        """Yield objects, counting that they are made, but not how long a disk takes to store them.

        Raises GiveUp if the process ended too often while they were made.
        """
        if self.spool.interruptions(study_uid) >= MOST_INTERRUPTIONS:
            raise GiveUp(
                f"interrupted: the process ended {MOST_INTERRUPTIONS} times while the outputs of this study were being "
                "written; find the cause in the service's log, then retry"
            )
        while True:
            with self.spool.counted(study_uid):
                made = next(objects, None)
            if made is None:
                break
            yield made
        self.spool.end_writing(study_uid)

    def _order(self, plan: Round, part: AnsweredPart) -> Order | None:
        """Return the order that the message on a part answers; the same for each call of a round."""
        return self.orders.fix(
            study_uid=plan.study_uid,
            accession=part.accession,
            patients=part.patients,
            is_only_number=part.is_only_number,
            at=plan.created_at,
            part=part.report.part,
        )
