"""Writes an export into a folder: films with their reports, tables of labels and findings, and a README.

    films/<patient>/<uid>-<digits>.dcm     the films that the network read
    objects/<patient>/<uid>-<digits>.dcm   their newest structured reports and presentation states
    pictures/<digits>.png, films.jsonl     what readers corrected, as `node corrections` writes it
    films.csv, findings.csv                labels by readers; the network's findings, as readers corrected them
    README.md                              written last: an export without it is not complete

The digits change with the stored object. Each file gets its name when it is whole, so a stopped export goes on from
there; what a folder holds beside the files of the finished export is removed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import partial
from pathlib import Path
from typing import Final

from language.labels import NO_FINDING, class_rules
from models.contract import FindingState
from node import csv_table
from node.commands.corrections import picture_of, truth_of
from node.commands.export import deidentified, pseudonyms
from node.commands.export.deidentified import OLDEST, OPTIONS, PROFILE, REMOVED, Person, person_of
from node.commands.export.pseudonyms import Pseudonyms
from node.config import Settings
from node.dicom import identity
from node.domain import OutputObject
from node.errors import InputError, NodeError, Undecodable, is_of_disk
from node.jobs.answered_film import AnsweredFilm, UnusableFilm, as_corrected, read_film
from node.outputs.study_parts import divide
from node.prompt_set import PromptSet
from node.read import decoding, prompts
from node.store import files, received, rounds, study_facts
from node.store.spool import Spool
from node.store.study_facts import StudyFacts

KINDS: Final = ("sr", "sr3d", "text", "gsps")
"""Kinds of outputs that are exported."""
UNFINISHED: Final = ".unfinished"
"""The file by which an export knows its folder again, until it is complete."""
_CLASSES: Final = (*sorted(class_rules()), NO_FINDING)
_FINDING: Final = ("file", "patient", "finding", "state", "probability", "reader")
_PARTS: Final = ("films", "objects", "pictures")


@dataclass(slots=True, kw_only=True)
class Export:
    """What an export has written so far.

    written: its files; left_out: how many films and objects were not exported, by reason
    """

    films: list[Mapping[str, object]] = field(default_factory=list)
    findings: list[Mapping[str, object]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    objects: int = 0
    written: set[Path] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def patients(self) -> set[object]:
        """The pseudonyms of the exported films."""
        return {row["patient"] for row in self.films}


def export(settings: Settings, out: Path, *, since: date, tell: Callable[[str, int, int], None]) -> Export:
    """Export every film that came since a day, in the zone of the site; the same command again goes on.

    tell: called with the numbers of finished and of all studies
    Raises InputError for a folder that is not empty, or another export's, NodeError if a file cannot be written.
    """
    directory = settings.storage.directory
    files.require_started(directory)
    if out.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{out}: lies in the node's own folder; name a folder elsewhere")
    prompt_set = prompts.load(settings.model.prompts)
    spool = Spool(directory, character_set=settings.site.character_set)
    try:
        mapped = pseudonyms.of_node(directory)
        with _claimed(out, mark=mapped.name("export", since.isoformat())):
            exporter = _Exporter(spool, mapped, prompt_set, out)
            begin = datetime.combine(since, time(), settings.site.zone)
            studies = list(spool.studies())
            for number, study_uid in enumerate(studies, 1):
                with suppress(FileNotFoundError):  # the node removes it meanwhile
                    exporter.study(study_uid, begin=begin, nobodys=settings.site.nobodys)
                tell("studies", number, len(studies))
            exporter.finish()
    except OSError as error:
        raise NodeError(f"{out}: cannot be written ({error.strerror}); run the same command again to go on") from error
    return exporter.done


@contextmanager
def _claimed(out: Path, *, mark: str) -> Iterator[None]:
    """Hold a folder that is empty, or has this export unfinished; mark: identifies the node and the export."""
    files.make_folder(out)
    marker = out / UNFINISHED
    is_empty = not any(path.name != UNFINISHED for path in out.iterdir())
    if not is_empty and not marker.exists():
        raise InputError(f"{out}: is not empty, and has no unfinished export; name a new folder")
    with files.try_lock(marker) as is_free:
        if not is_free:
            raise InputError(f"{out}: another export is being written into it; wait for it, or name a new folder")
        if marker.read_text(encoding="ascii", errors="replace") != mark and not is_empty:
            raise InputError(f"{out}: has an unfinished export of another node or day; name a new folder")
        marker.write_text(mark, encoding="ascii")
        for path in list(files.unfinished(out)):
            path.unlink()
        yield
        marker.unlink()


class _Exporter:
    """Writes studies one after the other."""

    def __init__(self, spool: Spool, mapped: Pseudonyms, prompt_set: PromptSet, out: Path) -> None:
        self.done = Export()
        self._spool, self._mapped, self._prompts, self._out = spool, mapped, prompt_set, out

    def study(self, study_uid: str, *, begin: datetime, nobodys: frozenset[str]) -> None:
        """Write the films of a study that came since a moment, and the newest objects on them."""
        if not any(instance.received_at >= begin for instance in self._spool.instances(study_uid)):
            return
        facts = study_facts.load(self._spool, study_uid)
        answered = self._answered(facts, begin=begin)
        division = divide(study_uid, {uid: film.header for uid, film in answered.items()}, nobodys=nobodys)
        people = {
            uid: person_of(answered[uid].header, self._mapped.patient(part, study_uid))
            for part in division.parts
            for uid in part.films
        }
        exported = dict[str, Person]()
        for uid, film in answered.items():
            if film.instance.received_at < begin:
                continue
            if film.answer.reason is not None:
                self.done.left_out[f"not read by the network ({film.answer.reason})"] += 1
            elif uid not in people:
                self.done.left_out["patient unclear"] += 1
            elif self._film(film, people[uid]):
                exported[uid] = people[uid]
        self._outputs(facts, exported)

    def finish(self) -> None:
        """Write the tables, and the README last; remove what is left of what the node has no longer."""
        for folder in _PARTS:
            for path in self._out.glob(f"{folder}/**/*"):
                if path.is_file() and path not in self.done.written:
                    path.unlink()
        done = self.done
        for name, content in (
            ("films.csv", csv_table.write(("file", "patient", *_CLASSES), done.films)),
            ("findings.csv", csv_table.write(_FINDING, done.findings)),
            ("films.jsonl", "".join(done.lines)),
            ("README.md", _readme(done)),
        ):
            files.write(self._out / name, content.encode(), mode=files.ORDINARY)

    def _answered(self, facts: StudyFacts, *, begin: datetime) -> dict[str, AnsweredFilm]:
        """Return all films of a study that have an answer; count those since a moment that have none."""
        found, unread = {}, facts.unread
        for instance in facts.instances:
            why = ""
            if instance.sop_instance_uid in facts.rejected:
                why = "rejected by the archive"
            else:
                try:
                    found[instance.sop_instance_uid] = read_film(self._spool, instance)
                except UnusableFilm:
                    why = "damaged"
                except InputError:
                    why = "no answer yet" if instance in unread else ""  # else no film
            if why and instance.received_at >= begin:
                self.done.left_out[why] += 1
        return found

    def _film(self, film: AnsweredFilm, person: Person) -> bool:
        """Write a film, its rows and its line; false if it cannot be written."""
        instance = film.instance
        name = f"{self._mapped.uid(instance.sop_instance_uid)}-{self._digits(instance.path.name)}.dcm"
        path = f"films/{person.pseudonym}/{name}"
        if not received.is_intact(instance.path):
            self.done.left_out["damaged"] += 1
            return False

        def make() -> bytes:
            return deidentified.film(film.header, decoding.stored_values(instance.path), person, self._mapped)

        if not self._write(path, make):
            return False
        corrected = as_corrected(film, self._spool, self._prompts)
        judged = [finding for finding in corrected.findings if finding.reader is not None]
        labels = {
            found.prompt: int(found.state is FindingState.PRESENT) for found in judged if found.prompt in _CLASSES
        }
        of_film = {"file": path, "patient": person.pseudonym}
        self.done.films.append({**of_film, **labels})
        self.done.findings += [
            {
                **of_film,
                "finding": finding.prompt,
                "state": str(finding.state),
                "probability": finding.output_probability,
                "reader": "" if finding.reader is None else str(finding.reader.what),
            }
            for finding in corrected.findings
        ]
        picture = f"pictures/{self._digits('picture', instance.path.name)}.png"
        truth = truth_of(film, corrected, self._prompts)
        if truth and self._write(picture, partial(picture_of, film)):
            self.done.lines.append(json.dumps({**of_film, "file": picture, "truth": truth}) + "\n")
        return True

    def _outputs(self, facts: StudyFacts, exported: Mapping[str, Person]) -> None:
        """Write the newest objects on exported films."""
        mark = next((mark for mark in reversed(facts.rounds) if mark.outputs), None)
        covered = rounds.covered(facts.rounds)
        here = {file.sop_instance_uid for file in facts.instances if file.path.name in covered} & exported.keys()
        has_readers_text = any(correction.text for correction in facts.corrections)
        if mark is None:
            return
        for output in (output for output in mark.outputs if output.kind in KINDS):
            about = {output.subject.film} if output.subject.film else mark.films_beside(output)
            people = {exported[uid].pseudonym: exported[uid] for uid in sorted(about & here)}
            if len(people) != 1:
                continue
            [person] = people.values()
            self._output(output, person, has_readers_text=has_readers_text)

    def _output(self, output: OutputObject, person: Person, *, has_readers_text: bool) -> None:
        content = self._spool.output(output)
        if content is None:
            self.done.left_out["report or presentation state no longer here, or damaged"] += 1
            return
        digits = self._digits(output.sop_instance_uid, str(has_readers_text))
        path = f"objects/{person.pseudonym}/{self._mapped.uid(output.sop_instance_uid)}-{digits}.dcm"

        def make() -> bytes:
            return deidentified.output(content, person, self._mapped, has_readers_text=has_readers_text)

        self.done.objects += self._write(path, make)

    def _write(self, name: str, make: Callable[[], bytes | None]) -> bool:
        """Write a file unless it is there; false if it cannot be made."""
        path = self._out / name
        if not path.exists():
            try:
                content = make()
            except Undecodable:
                self.done.left_out["its pixels cannot be decoded"] += 1
                return False
            except Exception as error:  # the boundary to pydicom and dicom-anonymizer, which meet any content
                if is_of_disk(error):
                    raise
                self.done.left_out[f"cannot be de-identified ({type(error).__name__})"] += 1
                return False
            if content is None:
                return False
            files.make_folder(path.parent)
            files.write(path, content, mode=files.ORDINARY)
        self.done.written.add(path)
        return True

    def _digits(self, *said: str) -> str:
        return self._mapped.name("file", identity.VERSION, *said)


def _readme(done: Export) -> str:
    options = "\n".join(f"- {meaning} ({code} DCM)" for code, meaning in OPTIONS.items())
    left_out = "\n".join(f"- {count} {reason}" for reason, count in sorted(done.left_out.items())) or "- nothing"
    corrected = sum(len(row) > 2 for row in done.films)
    return f"""# Films for research

{len(done.films)} films of {len(done.patients)} patients, and {done.objects} structured reports and presentation states
on them. {corrected} films have labels by readers. Written by {identity.PROGRAM} {identity.VERSION}.
{identity.RESEARCH_LABEL}.

- `films.csv`: a line a film; 1 and 0 are a reader's word, empty is unknown
- `films.jsonl`, `pictures`: the films that readers corrected, with their boxes
- `findings.csv`: states and probabilities by the network, as readers corrected them; these are no labels
- `films`, `objects`: DICOM objects, a folder a patient

## De-identified by DICOM PS3.15 Annex E

{options}

The table of the profile is `{PROFILE}` of dicom-anonymizer. Patients and UIDs are mapped by a secret key of the node.
All dates of a patient are earlier by one hidden number of days. Times of day are left out, or midnight where one is
required. An age above {OLDEST} is told as {OLDEST}. Where a reader wrote words into a study, its reports say
{REMOVED} in place of every text.

**Unchecked: text that is burned into the pixels.** Look at each film before you pass it on. Who has the original films
finds them again by their pixels.

## Left out

{left_out}
"""
