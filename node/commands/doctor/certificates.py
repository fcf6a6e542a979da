"""Checks the certificate files of every TLS table: readable, matching, and valid for long enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from node.checks import Check, fault, note, ok
from node.config import Settings, TlsTable, tls_tables
from node.net import tls

_SOON_DAYS: Final = 30.0


def check_certificates(settings: Settings) -> Iterator[Check]:
    """Check the node's own certificates, their keys, and the trusted authorities."""
    for table, files in tls_tables(settings):
        yield from _check(table, files)


def _check(table: str, files: TlsTable) -> Iterator[Check]:
    name = f"certificate {table}"
    mistakes = list(tls.mistakes_in(table, files))
    for mistake in mistakes:
        yield fault(name, mistake)
    if mistakes:
        return
    ca = tls.ca_of(files)
    if ca is not None:
        yield _lasting(name, f"the authority in {ca}", tls.authorities_days_left(ca))
    if files.certificate is None:
        return
    yield _lasting(name, f"{files.certificate}, which matches its key,", tls.days_left(files.certificate))
    if ca is not None and not tls.is_issued_by(files.certificate, ca):
        yield note(name, f"{files.certificate} was not issued by {ca}; peers must trust its issuer")


def _lasting(name: str, subject: str, days: float) -> Check:
    if days < 0:
        return fault(name, f"{subject} expired {_days(-days)} ago; connections fail until it is renewed")
    if days < _SOON_DAYS:
        return note(name, f"{subject} expires in {_days(days)}; renew it in time")
    return ok(name, f"{subject} is valid for {_days(days)}")


def _days(count: float) -> str:
    return f"{count:.0f} day{'' if round(count) == 1 else 's'}"
