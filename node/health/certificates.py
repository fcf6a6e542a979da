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


def check_expiry(settings: Settings) -> Iterator[Check]:
    """Check only for how long certificates and authorities are valid; one that cannot be read is a fault."""
    for table, files in tls_tables(settings):
        try:
            yield from list(_lasting_of(table, files))
        except (OSError, ValueError) as error:
            yield fault(_name(table), f"cannot be read ({tls.complaint(error)}); correct its files")


def _check(table: str, files: TlsTable) -> Iterator[Check]:
    name, ca = _name(table), tls.ca_of(files)
    mistakes = list(tls.mistakes_in(table, files))
    for mistake in mistakes:
        yield fault(name, mistake)
    if mistakes:
        return
    yield from _lasting_of(table, files)
    if files.certificate is not None and ca is not None and not tls.is_issued_by(files.certificate, ca):
        yield note(name, f"{files.certificate} was not issued by {ca}; peers must trust its issuer")


def _lasting_of(table: str, files: TlsTable) -> Iterator[Check]:
    """Raises OSError or ValueError for a file that cannot be read."""
    ca = tls.ca_of(files)
    if ca is not None:
        yield _lasting(_name(table), f"the authority in {ca}", tls.authorities_days_left(ca))
    if files.certificate is not None:
        subject = f"{files.certificate}, which matches its key,"
        yield _lasting(_name(table), subject, tls.days_left(files.certificate))


def _name(table: str) -> str:
    return f"certificate {table}"


def _lasting(name: str, subject: str, days: float) -> Check:
    if days < 0:
        return fault(name, f"{subject} expired {_days(-days)} ago; connections fail until it is renewed")
    if days < _SOON_DAYS:
        return note(name, f"{subject} expires in {_days(days)}; renew it in time")
    return ok(name, f"{subject} is valid for {_days(days)}")


def _days(count: float) -> str:
    return f"{count:.0f} day{'' if round(count) == 1 else 's'}"
