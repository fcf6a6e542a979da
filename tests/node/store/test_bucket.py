"""The client of a bucket on moto's S3 server: what is put, conditional PUT, and what a person is told of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.errors import BucketAway, InputError
from node.store.bucket import Bucket, BucketRefuses
from tests.support.peers import free_port
from tests.support.s3 import S3RVER_KEY, S3Server, s3_server, s3rver


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path) -> Bucket:
    return Bucket(server.settings(tmp_path, prefix=tmp_path.name))


def test_an_object_comes_back_with_its_bytes_and_time(bucket: Bucket) -> None:
    bucket.put("studies/1.2/received/1.2~0001~ab.dcm", b"film", modified_ns=5)

    found = bucket.get("studies/1.2/received/1.2~0001~ab.dcm")

    assert found is not None and (found.content, found.modified_ns, found.is_intact) == (b"film", 5, True)
    (listed,) = bucket.list("studies")
    assert (listed.name, listed.size) == ("studies/1.2/received/1.2~0001~ab.dcm", 4)


def test_a_taken_name_is_kept_by_a_conditional_put(bucket: Bucket) -> None:
    assert bucket.put_new("studies/a", b"first", modified_ns=1)
    assert not bucket.put_new("studies/a", b"second", modified_ns=1)

    found = bucket.get("studies/a")
    assert found is not None and found.content == b"first"


def test_a_deleted_object_is_gone(bucket: Bucket) -> None:
    bucket.put("studies/a", b"", modified_ns=1)
    bucket.delete("studies/a")
    bucket.delete("studies/a")

    assert bucket.get("studies/a") is None
    assert list(bucket.list("studies")) == []


def test_the_lock_has_one_owner(bucket: Bucket) -> None:
    assert bucket.lock("first") and bucket.lock("first")
    assert not bucket.lock("second")

    bucket.delete("owner")

    assert bucket.lock("second") and not bucket.is_held_by("first")


def test_a_server_with_conditional_writes_has_no_fault(bucket: Bucket) -> None:
    assert bucket.fault() is None
    assert list(bucket.list("probe")) == []


def test_variables_of_the_environment_change_nothing(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ENDPOINT", "http://127.0.0.1:9"), ("SESSION_TOKEN", "other"), ("BUCKET", "other")):
        monkeypatch.setenv(f"AWS_{name}", value)

    assert Bucket(server.settings(tmp_path)).fault() is None


def test_a_server_that_is_away_is_named(server: S3Server, tmp_path: Path) -> None:
    away = Bucket(server.settings(tmp_path, port=free_port()))

    with pytest.raises(BucketAway, match="cannot be reached"):
        away.put("a", b"", modified_ns=1)
    assert "cannot be reached" in str(away.fault())


def test_a_missing_bucket_is_named(server: S3Server, tmp_path: Path) -> None:
    other = Bucket(server.settings(tmp_path, bucket="missing"))

    for call in (lambda: other.put("a", b"", modified_ns=1), lambda: other.get("a"), lambda: list(other.list("a"))):
        with pytest.raises(BucketRefuses, match="does not exist; create it"):
            call()


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    with s3_server(is_strict=True) as strict:
        bucket = Bucket(strict.settings(tmp_path))
        with pytest.raises(BucketRefuses, match="refuses the access key"):
            bucket.put("a", b"", modified_ns=1)
        assert "access_key_file" in str(bucket.fault())


def test_a_key_file_that_is_missing_is_named(server: S3Server, tmp_path: Path) -> None:
    settings = replace(server.settings(tmp_path), secret_key_file=tmp_path / "nothing")

    with pytest.raises(InputError, match=r"secret_key_file .* cannot be read"):
        Bucket(settings)


def test_s3rver_keeps_bytes_and_is_refused_for_its_puts(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    with s3rver(tmp_path) as server:
        bucket = Bucket(server.settings(tmp_path, key=S3RVER_KEY))
        bucket.put("studies/1.2/received/1.2~0001~ab.dcm", content, modified_ns=5)
        found = bucket.get("studies/1.2/received/1.2~0001~ab.dcm")

        assert found is not None and found.is_intact and (found.content, found.modified_ns) == (content, 5)
        assert [item.size for item in bucket.list("studies")] == [len(content)]
        assert "in spite of If-None-Match" in str(bucket.fault())


def test_a_wrong_key_is_named(tmp_path: Path) -> None:
    with s3rver(tmp_path) as server:
        bucket = Bucket(server.settings(tmp_path, key="wrong"))

        with pytest.raises(BucketRefuses, match="refuses the access key"):
            bucket.get("studies/1.2")
