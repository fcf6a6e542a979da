"""Read the films of a study, and their headers, from the disk; a film that was answered before is not read again.

An answer is stored under a key that changes with the film's bytes, the model, the prompt set and the program version.
A film is answered with a reason and parked if its stored bytes are damaged, or if the process ended several times while
reading it. No round covers a parked film, so it is read after it was received again or after `retry`.

The thumbnails of films are kept in memory from their reading until their study is written. They save a second decoding:
a thumbnail that is lost, for example with the process, is decoded again, and the outputs are the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset

from models.documents import encode
from node.dicom import header_reading
from node.dicom.header import read_meta
from node.dicom.identity import VERSION
from node.domain import Film, JsonObject, Reason, derive_uid
from node.errors import Undecodable, is_of_file
from node.outputs.patient import noted
from node.prompt_set import PromptSet
from node.read.decoding import Thumbnail
from node.read.film import Timed, answer_film, untimed
from node.read.model import RadiographReader
from node.rounds.round_plan import Round
from node.store import received
from node.store.interrupted_work import MOST_INTERRUPTIONS
from node.store.received import sop_instance_uid_of
from node.store.spool import Spool
from node.store.study_facts import StudyFacts, rejected_by

_Answer: TypeAlias = tuple[Film | None, Reason | None]
"""The answer to a received object, or the reason why it gets none."""
_MOST: Final = 256
"""One has some 100,000 pixels, that of a long strip at most two million."""


class Thumbnails:
    """Those of films that were read by this process; thread-safe."""

    def __init__(self) -> None:
        self._kept, self._changing = OrderedDict[Path, Thumbnail](), Lock()

    def keep(self, path: Path, thumbnail: Thumbnail) -> None:
        """Keep the thumbnail of a received film; of many, the oldest is dropped."""
        with self._changing:
            self._kept[path] = thumbnail
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def take(self, path: Path) -> Thumbnail | None:
        """Pop the cached thumbnail of a film."""
        with self._changing:
            return self._kept.pop(path, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFilms:
    """The answers to the objects of a round, by file.

    answers: the answers to its films; none to an object that is left alone, or that a note rejects
    headers: the received headers of these films, and of undamaged objects that a note rejects
    thumbnails: those of films that were read just now
    """

    answers: Mapping[str, Film]
    headers: Mapping[str, Dataset]
    thumbnails: Mapping[str, Thumbnail]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmReader:
    """Reads received objects with one network and prompt set, and stores the answers.

    on_read: called with every film that the network has read, and the gray values of its thumbnail, if it has one
    program: version of this program
    """

    spool: Spool
    reader: RadiographReader
    prompts: PromptSet
    timed: Timed = untimed
    on_read: Callable[[Film, npt.NDArray[np.uint8] | None], None] = lambda _film, _gray: None
    thumbnails: Thumbnails = field(default_factory=Thumbnails)
    program: str = VERSION

    def of_round(self, plan: Round, facts: StudyFacts) -> RoundFilms:
        """Return the answers of a round; facts: with the stored readings of its files; makes missing readings."""
        rejected = rejected_by(facts.notes.values())
        kept = [file for file in plan.files if sop_instance_uid_of(file) not in rejected]
        answers = {file: film for file in kept if (film := self.answer(facts, file)[0]) is not None}
        taken = {file: self.thumbnails.take(facts.folder / file) for file in answers}
        return RoundFilms(
            answers=answers,
            headers=dict(self._headers(plan, facts, answers, kept)),
            thumbnails={file: thumbnail for file, thumbnail in taken.items() if thumbnail is not None},
        )

    def _headers(
        self, plan: Round, facts: StudyFacts, answers: Mapping[str, Film], kept: list[str]
    ) -> Iterator[tuple[str, Dataset]]:
        for file in plan.files:
            path, header = facts.folder / file, None
            if (film := answers.get(file)) is not None:
                header = received_header(path, self.spool.character_set, is_damaged=film.reason is Reason.DAMAGED)
            elif file not in kept and received.is_intact(path):
                header = received_header(path, self.spool.character_set)
            if header is not None:
                yield file, header

    def answer(self, facts: StudyFacts, file: str) -> _Answer:
        """Return the stored answer to a received object, or a new one, which is stored."""
        source = sop_instance_uid_of(file)
        if not received.is_intact(facts.folder / file):
            return Film(source=source, reason=Reason.DAMAGED), None
        key = self.key(file)
        if (kept := facts.readings.get(key)) is not None:
            return kept, None
        if self.spool.interruptions(facts.uid, key) >= MOST_INTERRUPTIONS:
            return Film(source=source, reason=Reason.INTERRUPTED), None
        try:
            with self.spool.counted(facts.uid, key):
                film, left = self._answer(facts.folder / file)
        except OSError as error:
            if is_of_file(error):  # the file was damaged after the check above
                return Film(source=source, reason=Reason.DAMAGED), None
            raise
        if film is not None and film.reason is not Reason.READER_FAILED:  # a retry reads it again
            self.spool.keep_reading(facts.uid, key, {**encode(film), **self._origin(file)})
        return film, left

    def _answer(self, path: Path) -> _Answer:
        """Answer a received object, without looking for a stored answer."""
        try:
            answered = answer_film(
                path, self.reader, self.prompts, character_set=self.spool.character_set, timed=self.timed
            )
        except Undecodable:
            return Film(source=sop_instance_uid_of(path.name), reason=Reason.UNDECODABLE), None
        if answered.film is None:
            return None, answered.reason
        thumbnail = answered.thumbnail
        if answered.film.is_read:
            self.on_read(answered.film, None if thumbnail is None else thumbnail.gray)
        if thumbnail is not None:
            self.thumbnails.keep(path, thumbnail)
        return noted(answered.film, answered.dataset), answered.reason

    def key(self, file: str) -> str:
        """Return the key of the reading of a file by this program version, model and prompt set.

        It covers the site's character set, too, because the film's notes on its header text depend on it.
        """
        own = filter(None, (self.spool.character_set,))
        return derive_uid("reading", file, self.program, *self.reader.identity.parts, self.prompts.sha256, *own)

    def _origin(self, file: str) -> JsonObject:
        """Describe a reading: its file, model, runtime, prompt set and program version."""
        model, prompts = self.reader.identity, self.prompts
        return {
            "file": file,
            "model": f"{model.name} {model.version}",
            "engine": model.engine,
            "prompts": prompts.title,
            "program": self.program,
            "weights_sha256": model.weights_sha256,
            "manifest_sha256": model.manifest_sha256,
            "trusted": model.trusted,
            "prompts_sha256": prompts.sha256,
        }


def received_header(path: Path, character_set: str, *, is_damaged: bool = False) -> Dataset | None:
    """Return the header of a received object; if it cannot be parsed, the values of file meta information and path.

    None when even the file meta information is damaged.
    """
    if is_damaged:
        return _bare(path) if received.has_intact_meta(path) else None
    try:
        return header_reading.read_header(path, character_set=character_set)
    except Undecodable:
        return _bare(path)


def _bare(path: Path) -> Dataset:
    instance, header = received.instance_of(path), Dataset()
    with path.open("rb") as content:
        header.SOPClassUID = read_meta(content).MediaStorageSOPClassUID
    header.SOPInstanceUID = instance.sop_instance_uid
    header.StudyInstanceUID = instance.study_uid
    return header
