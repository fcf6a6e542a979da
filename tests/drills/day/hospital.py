"""A day at a node: everything of the plan happens, at its time, and in the end everything is counted."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, cast

from pydicom.dataset import Dataset
from pydicom.uid import UID

from models.progress import ProgressReport
from node.commands import operate
from node.config import Settings
from node.jobs.study_actions import retry_all
from tests.drills.chaos import night, verdict
from tests.drills.day import alerts, course
from tests.drills.day.course import Event, Kind, Plan
from tests.drills.soak import is_flat
from tests.support import films, peers
from tests.support.processes import Vitals, vitals_of
from tests.support.prometheus import Pace, Prometheus, run_prometheus
from tests.support.service import Service, settings_for

PACS, STRANGER = "PACS", "STRANGER"
QUIET_SECONDS: Final = 5.0
"""The node's default, simulated."""

_SAMPLE_SECONDS: Final = 0.25
_SENDERS: Final = 8
_PATIENCE_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 0.3
_REFUSED_STATUS: Final = 0xC000

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What a reader corrected, and how many reports the archive had of the study before."""

    study: str
    film: str
    prompt: str
    what: str
    reports: int


@dataclass(slots=True)
class Ward:
    """What is known of the day so far: which films were acknowledged, which were sent again, what was corrected."""

    acknowledged: dict[str, set[str]] = field(default_factory=dict)
    again: int = 0
    corrections: list[Correction] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def run(plan: Plan, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Live through a day and count; the figures, with `passed`."""
    with peers.ReceivingArchive() as archive:
        settings = settings_for(
            folder / "node",
            archive_port=archive.port,
            callers=(PACS,),
            quiet_seconds=max(0.05, QUIET_SECONDS / plan.scale),
        )
        with Service(settings) as node:
            pace = Pace(scale=plan.scale, began=time.time() + 0.5, first_hour=plan.first_hour)
            with run_prometheus(folder, pace=pace, node=[node.http_port]) as prometheus:
                day = Day(plan, settings, node=node, archive=archive, pace=pace)
                day.live(say)
                is_idle = night.wait_until_idle(settings, patience_seconds=_PATIENCE_SECONDS)
                fired = _fired(prometheus, plan, pace)
                scrapes_failed = _scrapes_failed(prometheus, pace)
            followed = sum(day.is_followed(correction) for correction in day.ward.corrections)
            repeated = _counted(node, 'cxr_instances_total{outcome="repeated"}')
            exit_code = node.stop()
    arrived = verdict.judge_own(archive, day.ward.acknowledged, excused=2 * night.IN_HAND * len(plan.outages))
    before, after = day.compared()
    growth = after.resident_kib / before.resident_kib - 1.0
    corrected = len(day.ward.corrections)
    is_good = arrived.passed and is_idle and exit_code == 0 and growth <= plan.most_growth
    is_followed = followed == corrected == sum(event.kind is Kind.CORRECTION for event in day.events)
    is_kept = is_good and is_flat(before, after, room=plan.room) and is_followed and repeated == day.ward.again
    return {
        "passed": is_kept and fired.passed,
        "kept": is_kept,
        "seed": plan.seed,
        "simulated_hours": plan.hours,
        "scale": plan.scale,
        "films": sum(map(len, day.ward.acknowledged.values())),
        "sent_again": day.ward.again,
        "seen_again": repeated,
        "corrections": corrected,
        "corrections_followed": followed,
        "idle_at_the_end": is_idle,
        "memory_growth": round(growth, 4),
        "before_and_after": [asdict(before), asdict(after)],
        "scrapes_failed": scrapes_failed,
        "alerts": fired.times,
        "alerts_missing": fired.missing,
        "alerts_unexpected": fired.unexpected,
        "alerts_unresolved": fired.unresolved,
        "archive": arrived.figures(),
        "exit_code": exit_code,
        "longest_behind_seconds": round(day.longest_behind, 2),
        "seconds": round(time.time() - pace.began, 1),
    }


class Day:
    """The events of a plan, each in its own thread or, where it changes the archive, in this one."""

    def __init__(
        self, plan: Plan, settings: Settings, *, node: Service, archive: peers.ReceivingArchive, pace: Pace
    ) -> None:
        self.ward, self.events, self.longest_behind = Ward(), course.events(plan), 0.0
        self._plan, self._settings, self._node, self._archive, self._pace = plan, settings, node, archive, pace
        self._draw = random.Random(plan.seed + 2)
        self._kinds = itertools.cycle(("reject", "add", "accept"))
        self._samples: list[tuple[float, Vitals]] = []
        self._parsed: list[Dataset] = []
        self._parsing = threading.Lock()

    def live(self, say: ProgressReport) -> None:
        """Let everything happen, and the rest of the day pass. Raises what an event raised."""
        end = (self._plan.first_hour + self._plan.hours) * course.HOUR
        works: list[Future[None]] = []
        try:
            with ThreadPoolExecutor(_SENDERS) as pool:
                for event in self.events:
                    self._wait_until(event.at, say)
                    if (at_once := self._here(event)) is not None:
                        at_once()
                    else:
                        works.append(pool.submit(self._elsewhere, event))
                self._wait_until(end, say)
        finally:
            self._archive.accept()
        for work in works:
            work.result()

    def compared(self) -> tuple[Vitals, Vitals]:
        """Return what the process needed in the two parts of equal load, by medians."""
        before, after = self._plan.compared
        return self._median(before), self._median(after)

    def is_followed(self, correction: Correction) -> bool:
        """Whether the archive has a report after a correction, and the node tells it of the finding."""
        is_new = len(self._reports(correction.study)) > correction.reports
        return is_new and self._finding_of(correction).get("what") == correction.what

    def _wait_until(self, at: float, say: ProgressReport) -> None:
        self._sample(0.0)  # also where the machine is late
        while (left := (at - self._pace.time_of(time.time())) / self._plan.scale) > 0:
            passed = max(0, int(self._pace.time_of(time.time()) / course.MINUTE) - int(self._plan.first_hour * 60))
            say("minutes of the day", passed, int(self._plan.hours * 60))
            self._sample(min(left, _SAMPLE_SECONDS))
        self.longest_behind = max(self.longest_behind, -left)

    def _sample(self, seconds: float) -> None:
        self._samples.append((self._pace.time_of(time.time()), vitals_of(self._node.pid)))
        time.sleep(seconds)

    def _here(self, event: Event) -> Callable[[], None] | None:
        """What changes the archive, which nothing else may do meanwhile."""
        return {
            Kind.DOWN: self._archive.stop,
            Kind.UP: self._archive.start,
            Kind.REFUSAL: lambda: self._refuse(event),
        }.get(event.kind)

    def _elsewhere(self, event: Event) -> None:
        match event.kind:
            case Kind.FILM:
                self._send(event)
            case Kind.AGAIN:
                self._send_again()
            case Kind.CORRECTION:
                self._correct()
            case Kind.CONFLICT:
                self._send_other_pixels()
            case Kind.STRANGER:
                assert peers.send(films.thumbnail(), port=self._node.dicom_port, calling_ae=STRANGER) is None
            case Kind.RETRY:
                assert retry_all(self._settings)

    def _send(self, event: Event) -> None:
        """Send a film as a PACS does: again and again until it is acknowledged."""
        film = films.as_another(films.thumbnail(), event.film, study=event.study)
        while self._sent(film) != 0:
            time.sleep(_AGAIN_SECONDS)
        with self.ward.lock:
            self.ward.acknowledged.setdefault(str(film.StudyInstanceUID), set()).add(str(film.SOPInstanceUID))

    def _send_again(self) -> None:
        """Send a film that was acknowledged."""
        with self.ward.lock:
            study, uids = self._draw.choice(list(self.ward.acknowledged.items()))
            uid = self._draw.choice(sorted(uids))
        assert self._sent(self._known(study, uid)) == 0
        with self.ward.lock:
            self.ward.again += 1

    def _send_other_pixels(self) -> None:
        """Send another picture under a UID that is known; it is acknowledged and not read."""
        with self.ward.lock:
            study, uids = next(iter(self.ward.acknowledged.items()))
        film = self._known(study, min(uids))
        assert self._sent(films.with_pixels(film, film.pixel_array[::-1], bits=15)) == 0

    def _refuse(self, event: Event) -> None:
        """Let the archive refuse the objects of a film, until the node has parked them."""
        self._archive.refuse(_REFUSED_STATUS)
        self._send(event)
        peers.wait_until(lambda: bool(operate.status(self._settings)["parked"]), what="refused objects are parked")
        self._archive.accept()

    def _correct(self) -> None:
        """Correct a film that the archive has a report and a presentation state of, once."""
        study, film = "", ""

        def is_found() -> bool:
            nonlocal study, film
            with self.ward.lock:
                corrected = {correction.study for correction in self.ward.corrections}
                known = sorted((study, sorted(uids)[0]) for study, uids in self.ward.acknowledged.items())
            open_films = [
                known_film
                for known_film in known
                if known_film[0] not in corrected and self._is_answered(known_film[0])
            ]
            if open_films:
                study, film = self._draw.choice(open_films)
                self._note(study, film)
            return bool(open_films)

        peers.wait_until(is_found, what="a film that can be corrected", limit_seconds=_PATIENCE_SECONDS)

    def _note(self, study: str, film: str) -> None:
        """Correct a finding of a film over the interface for programs."""
        kind = next(self._kinds)
        wanted = ("present",) if kind != "add" else ("absent",)
        finding = next(found for found in self._findings(study, film) if found["state"] in wanted)
        body: Json = {"kind": kind, "prompt": finding["prompt"]}
        if kind == "add":
            body["box"] = [20.0, 30.0, 90.0, 120.0]
        reports = len(self._reports(study))
        status, answer = self._node.ask("POST", f"/api/v1/films/{film}/corrections", body)
        assert status == 202, answer
        correction = Correction(
            study=study,
            film=film,
            prompt=str(finding["prompt"]),
            what={"reject": "rejected", "add": "added", "accept": "accepted"}[kind],
            reports=reports,
        )
        with self.ward.lock:
            self.ward.corrections.append(correction)

    def _finding_of(self, correction: Correction) -> Mapping[str, object]:
        findings = self._findings(correction.study, correction.film)
        finding = next(found for found in findings if found["prompt"] == correction.prompt)
        return cast(Mapping[str, object], finding["reader"] or {})

    def _findings(self, study: str, film: str) -> list[Json]:
        status, answer = self._node.ask("GET", f"/api/v1/studies/{study}")
        assert status == 200, answer
        shown = cast(list[dict[str, Json]], answer["films"])
        return next(
            cast(list[Json], answered["film"]["findings"]) for answered in shown if answered["film"]["source"] == film
        )

    def _is_answered(self, study: str) -> bool:
        """Whether the archive has the answers to all films of a study that were acknowledged."""
        with self.ward.lock:
            uids = set(self.ward.acknowledged[study])
        return not verdict.unanswered({study: uids}, self._of_study(study))

    def _reports(self, study: str) -> list[Dataset]:
        return [stored for stored in self._of_study(study) if stored.Modality == "SR"]

    def _of_study(self, study: str) -> list[Dataset]:
        """What the archive has of a study, each object once."""
        with self._parsing:
            self._parsed += [received.dataset for received in list(self._archive.kept)[len(self._parsed) :]]
            return list(
                {
                    str(stored.SOPInstanceUID): stored for stored in self._parsed if stored.StudyInstanceUID == study
                }.values()
            )

    def _sent(self, film: Dataset) -> int | None:
        return peers.send(film, port=self._node.dicom_port, calling_ae=PACS)

    def _known(self, study: str, uid: str) -> Dataset:
        """The picture under UIDs that were sent before."""
        film = films.thumbnail()
        film.StudyInstanceUID, film.SOPInstanceUID = UID(study), UID(uid)
        film.file_meta.MediaStorageSOPInstanceUID = film.SOPInstanceUID
        return film

    def _median(self, hour: float) -> Vitals:
        begin, end = hour * course.HOUR, (hour + self._plan.over) * course.HOUR
        part = [vitals for at, vitals in self._samples if begin <= at < end]
        return Vitals(
            resident_kib=int(statistics.median(sample.resident_kib for sample in part)),
            threads=int(statistics.median(sample.threads for sample in part)),
            descriptors=int(statistics.median(sample.descriptors for sample in part)),
        )


def _fired(prometheus: Prometheus, plan: Plan, pace: Pace) -> alerts.Fired:
    """Wait until no alert fires any more, for some time, and judge those that did."""
    end = time.time() + plan.resolved_seconds
    while (unresolved := prometheus.firing("node")) and time.time() < end:
        time.sleep(_SAMPLE_SECONDS)
    since = time.time() - pace.began + 5.0
    found = alerts.firings(
        prometheus.series('ALERTS{alertstate="firing"}', seconds=since),
        prometheus.series("ALERTS_FOR_STATE", seconds=since),
    )
    simulated = [
        alerts.Firing(firing.alert, firing.labels, pace.time_of(firing.began), pace.time_of(firing.ended))
        for firing in found
    ]
    return alerts.judge(simulated, course.due(plan), unresolved=unresolved)


def _scrapes_failed(prometheus: Prometheus, pace: Pace) -> int:
    """Count the scrapes that got no page: each makes every series stale, and every alert starts anew."""
    return sum(value == 0 for _, up in prometheus.series("up", seconds=time.time() - pace.began) for _, value in up)


def _counted(node: Service, sample: str) -> int:
    """One counter, as the node exports it now."""
    return int(
        sum(float(line.rpartition(" ")[2]) for line in node.metrics().splitlines() if line.startswith(f"{sample} "))
    )
