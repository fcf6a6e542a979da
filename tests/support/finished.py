"""What a node leaves that has read films and stopped, and its pages and interface for any user, without a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydicom.dataset import Dataset
from starlette.testclient import TestClient

from models.contract import Box
from models.documents import encode
from node.config import Settings
from node.domain import Delivery
from node.jobs import gathering
from node.jobs.patients import note_patients
from node.jobs.question_answerer import QuestionAnswerer
from node.metrics import Metrics
from node.read.model import OpenModel, RadiographReader
from node.store.correction import Correction, CorrectionKind
from node.store.spool import Spool
from node.web import application
from node.web.dependencies import WebParts
from node.web.look_files import Looks
from node.web.users import Role
from tests.support import films, senders
from tests.support.damage import Bench
from tests.support.fakes import ScriptedReader
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS
from tests.support.web_access import as_user


def parts_of(settings: Settings, spool: Spool | None = None, **others: object) -> WebParts:
    """Return the parts of a process that does not read; others: instead of these, as `WebParts` takes them."""
    spool = spool or Spool(settings.storage.directory)
    looks = Looks(spool.directory / "looks")
    looks.close()  # nothing is looked at for as long as would be cleaned up
    made: dict[str, Any] = {"looks": looks, "metrics": Metrics(), "prompts": lambda: PROMPTS}
    return WebParts(in_force=lambda: settings, spool=spool, **{**made, **others})


def pages_of(
    parts: WebParts, *, user: str = "", host: str = "127.0.0.1", role: Role = Role.ADMINISTRATOR
) -> TestClient:
    """Return a client at the pages and the interface, as a user whom `Access` has let in."""
    return TestClient(as_user(application.build(parts), name=user, host=host, role=role))


class Finished:
    """A spool whose films were read and whose results were sent step by step, as by a node that has stopped.

    reader: that reads them and answers questions; change: of the node's settings
    """

    def __init__(
        self,
        folder: Path,
        *,
        reader: RadiographReader | None = None,
        change: Callable[[Settings], Settings] = lambda settings: settings,
        **others: object,
    ) -> None:
        self.settings = change(settings_for(folder, archive_port=104))
        self.bench = Bench(folder)
        self.spool, self.ledger = self.bench.spool, self.bench.ledger
        reader = reader or ScriptedReader()
        steps = self.bench.steps
        if self.settings.http.shows_patients:
            steps = replace(steps, note_patients=partial(note_patients, self.spool, self.ledger))
        pipeline = steps.pipeline
        self.bench.steps = replace(steps, pipeline=replace(pipeline, films=replace(pipeline.films, reader=reader)))
        model = OpenModel(reader=reader, prompts=PROMPTS)
        answerer = QuestionAnswerer(self.spool, model, self.bench.metrics)
        reads = {"metrics": self.bench.metrics, "model": lambda: model, "answerer": lambda: answerer}
        self.parts = parts_of(self.settings, self.spool, **{**reads, **others})

    def read(self, *received: Dataset) -> list[Delivery]:
        """Receive films, and do the next round of each study."""
        for film in received:
            films.keep(self.spool, film)
        studies = dict.fromkeys(str(film.StudyInstanceUID) for film in received)
        return [delivery for study in studies for delivery in self.round(study)]

    def round(self, study: str) -> list[Delivery]:
        """Read what is new of a study, write its results, and have them taken by the archive."""
        by_destination = senders.run_round(self.bench.steps, study)
        deliveries = [delivery for several in by_destination.values() for delivery in several]
        for delivery in deliveries:
            self.ledger.set_sent(delivery, attempts=1)
        return deliveries

    def correct(
        self,
        film: Dataset,
        kind: CorrectionKind = CorrectionKind.ACCEPT,
        *,
        prompt: str = "",
        box: Box | None = None,
        withdraws: str = "",
    ) -> str:
        """Store what a reader says of a film, as page and interface do, and let it leave; its id."""
        study = str(film.StudyInstanceUID)
        number = len(self.spool.documents(study, "corrections")) + 1
        made = Correction(
            id=f"{number:032x}",
            study_uid=study,
            film=str(film.SOPInstanceUID),
            kind=kind,
            at=datetime(2026, 11, 23, 12, 0, number, tzinfo=UTC),
            by="anna",
            source="page",
            prompt=prompt,
            box=box,
            withdraws=withdraws,
        )
        self.spool.keep_document(study, "corrections", made.id, encode(made))
        gathering.release(self.spool, study, gathering.waiting(self.spool, study))
        return made.id

    def client(self, *, user: str = "") -> TestClient:
        """Return a client, as `pages_of`."""
        return pages_of(self.parts, user=user)
