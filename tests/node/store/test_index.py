"""The index of UIDs: right after a crash and a removal."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from node.errors import InputError
from node.store import questions
from node.store.index import Index
from node.store.received import Instance
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.store.study_facts import elsewhere, films_of
from tests.support import films


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


@pytest.fixture
def film(spool: Spool) -> Instance:
    return films.keep(spool, films.thumbnail()).instance


def remove(spool: Spool, film: Instance) -> None:
    mark = RoundMark(number=1, created_at=datetime.now(UTC), files=(film.path.name,), outputs=())
    spool.mark_round(film.study_uid, mark)
    assert spool.remove_study(film.study_uid)


def test_a_film_of_another_process_is_found_at_once(tmp_path: Path, spool: Spool) -> None:
    assert spool.find_studies("1.9.9") == []

    kept = films.keep(Spool(tmp_path), films.thumbnail()).instance

    assert films_of(spool, kept.sop_instance_uid) == [kept]


def test_an_entry_without_its_file_leads_to_no_film(spool: Spool, film: Instance) -> None:
    spool.index.add("1.3.5", film.study_uid)  # the process was killed before it wrote the object
    spool.index.add("1.3.6", "1.2.99")  # before it made the folder of the study

    assert films_of(spool, "1.3.5") == []
    assert spool.find_studies("1.3.6") == []


def test_what_a_power_cut_took_from_the_index_comes_back(tmp_path: Path, spool: Spool, film: Instance) -> None:
    spool.keep_document(film.study_uid, "questions", "a" * 32, {})
    shutil.rmtree(tmp_path / "index")

    started = Spool(tmp_path)

    assert films_of(started, film.sop_instance_uid) == [film]
    assert questions.study_of(started, "a" * 32) == film.study_uid


def test_a_removed_object_still_names_its_study(tmp_path: Path, spool: Spool, film: Instance) -> None:
    remove(spool, film)
    shutil.rmtree(tmp_path / "index")

    for known in (spool, Spool(tmp_path)):
        assert films_of(known, film.sop_instance_uid) == []
    assert Spool(tmp_path).find_studies(film.sop_instance_uid) == [film.study_uid]


def test_of_two_studies_both_are_found_until_one_is_removed(spool: Spool, film: Instance) -> None:
    again = films.keep(spool, films.thumbnail(), study_uid=f"{film.study_uid}.1").instance
    both, others = films_of(spool, film.sop_instance_uid), elsewhere(spool, film)
    remove(spool, film)

    assert (both, others) == ([film, again], [again])
    assert (films_of(spool, film.sop_instance_uid), elsewhere(spool, again)) == ([again], [])


def test_a_question_goes_with_its_study(spool: Spool, film: Instance) -> None:
    assert spool.find_studies("1.9.9") == []
    spool.keep_document(film.study_uid, "questions", "b" * 32, {})
    assert questions.study_of(spool, "b" * 32) == film.study_uid

    remove(spool, film)

    with pytest.raises(InputError, match="removed"):
        questions.study_of(spool, "b" * 32)


def test_no_name_leads_out_of_the_index(tmp_path: Path) -> None:
    index = Index(tmp_path / "index", tmp_path / "studies")

    assert [index.find(name) for name in ("", "..", "../studies", "1~2")] == [[]] * 4
