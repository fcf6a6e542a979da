"""Answers questions about received films at once, and stores each with its answer beside the film, synced.

Questions run before waiting films. A film that was asked about before is not decoded again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from models.contract import Question
from models.documents import encode
from node import log
from node.dicom import header_reading
from node.dicom.film_header import parse_header
from node.errors import AskerGone, InputError, ModelLost, RetryLater, Undecodable
from node.metrics import Metrics
from node.outputs import asked_question
from node.outputs.asked_question import AskedQuestion, Origin
from node.read import decoding, routing
from node.read.model import FilmAnswer, OpenModel, SeenFilm, check_questions, while_wanted
from node.read.view_check import ask_film, see_film
from node.store import received
from node.store.received import Instance
from node.store.spool import Spool
from node.store.study_facts import require_valid

_MOST_SEEN: Final = 64
"""Size of the cache of encoded films; one takes 0.2 MiB with the shipped model, 1.2 MiB at the published size."""
_MOST_WAITING: Final = 16


class QuestionAnswerer:
    """Answers questions about the films of one spool, with the prompts in use when they are asked. Thread-safe.

    is_broken: whether the GPU is unusable, so that the process must end
    """

    def __init__(self, spool: Spool, model: OpenModel, metrics: Metrics) -> None:
        self._spool, self._model, self._metrics = spool, model, metrics
        self._places = threading.BoundedSemaphore(_MOST_WAITING)
        self._seeing = threading.Lock()
        self._seen: OrderedDict[Path, SeenFilm] = OrderedDict()
        self.is_broken = False

    def use(self, model: OpenModel) -> None:
        """Answer with other prompts from now on; model: the same reader with them."""
        self._model = model

    def ask(
        self,
        film: Instance,
        questions: Sequence[Question],
        *,
        by: str,
        source: str,
        origins: Sequence[Origin] | None = None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> tuple[AskedQuestion, ...]:
        """Answer each question separately, and store the answers.

        by: the user's name on this node, "" without sign-in; source: one of `metrics.QUESTION_SOURCES`
        origins: the origin of each question, if an object of a workstation contained them
        is_gone: whether the client has disconnected; then the questions leave the queue of the network unstored
        Raises InputError for a film that is not read, rejected, damaged or removed, for a box that does not fit and for
        words that are not asked, RetryLater if too many questions wait, AskerGone, and ModelLost.
        """
        require_valid(self._spool, film)
        began, model = time.monotonic(), self._model
        answers = self._answers(film, questions, model, is_gone)
        identity, now = model.reader.identity, datetime.now(UTC)
        named: Sequence[Origin | None] = origins or [None] * len(answers)
        made = tuple(
            AskedQuestion(
                id=uuid.uuid4().hex if origin is None else origin.question_id(film.study_uid),
                study_uid=film.study_uid,
                film=film.sop_instance_uid,
                asked_at=now,
                asked_by=by,
                source=source,
                model=f"{identity.name} {identity.version}",
                weights_sha256=identity.weights_sha256,
                engine=identity.engine,
                prompts=model.prompts.title,
                answer=answer,
                origin=origin,
            )
            for answer, origin in zip(answers, named, strict=True)
        )
        self._keep(made)
        self._metrics.questions.labels(source).inc(len(made))
        self._metrics.question_seconds.observe(time.monotonic() - began)
        return made

    def _answers(
        self, film: Instance, questions: Sequence[Question], model: OpenModel, is_gone: Callable[[], bool]
    ) -> list[FilmAnswer]:
        """Answer questions while their client is connected, unless too many wait already."""
        if not self._places.acquire(blocking=False):
            raise RetryLater("too many questions wait for their answers; ask again in a moment")
        try:
            with self._spool.work.together(), while_wanted(is_gone):
                seen = self._see(film, is_gone)
                check_questions(questions, seen.framing, model.prompts)
                try:
                    return ask_film(seen, questions, model.prompts, model.reader)
                except ValueError as error:
                    raise InputError(str(error)) from error
        except AskerGone:
            log.get().info("question.dropped", study=film.study_uid)
            raise
        except ModelLost:
            self.is_broken = True
            raise
        finally:
            self._places.release()

    def _keep(self, questions: Iterable[AskedQuestion]) -> None:
        """Store questions with their answers, synced."""
        try:
            for question in questions:
                self._spool.keep_document(question.study_uid, "questions", question.id, encode(question))
        except FileNotFoundError as error:
            raise InputError("the study of this film is being removed") from error

    def _see(self, film: Instance, is_gone: Callable[[], bool]) -> SeenFilm:
        """Return a film as the network encoded it, from the cache if possible.

        One film at a time is decoded, which takes 100 MB of memory.
        """
        with self._seeing:
            if is_gone():  # checked after the wait for other films
                raise AskerGone("nobody waits for this answer any more")
            if film.path not in self._seen:
                self._seen[film.path] = self._seen_anew(film)
                if len(self._seen) > _MOST_SEEN:
                    self._seen.popitem(last=False)
            self._seen.move_to_end(film.path)
            return self._seen[film.path]

    def _seen_anew(self, film: Instance) -> SeenFilm:
        reader = self._model.reader
        if not received.is_intact(film.path):
            raise InputError("the stored file of this film is damaged or removed; send it again")
        try:
            header = parse_header(header_reading.read_header(film.path))
            decision = routing.choose(header, routing.rules_for(reader.ages))
            if decision.action is not routing.Action.READ:
                raise InputError(f"this film is not read by the network ({decision.reason}); choose another film")
            image = decoding.decode(film.path, header, gray=reader.gray, square=reader.square)
        except Undecodable as error:
            raise InputError("this film cannot be read; its report says why") from error
        return see_film(image, header, reader)


def questions_of(spool: Spool, film: Instance) -> list[AskedQuestion]:
    """Return the stored questions about a film, oldest first."""
    stored = spool.documents_as(asked_question.question_from_json, film.study_uid, "questions")
    own = [question for question in stored if question.film == film.sop_instance_uid]
    return sorted(own, key=lambda question: (question.asked_at, question.id))
