"""All checks in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from node.checks import Check, run_check
from node.commands.doctor.alerts import check_alerts
from node.commands.doctor.audit import check_audit
from node.commands.doctor.database import check_database
from node.commands.doctor.model import check_model
from node.commands.doctor.passwords import check_passwords
from node.commands.doctor.ports import check_ports
from node.commands.doctor.storage import check_storage
from node.config import Settings
from node.health.certificates import check_certificates
from node.health.clock import check_clock
from node.health.destinations import check_destinations

_CHECKS: Final[Mapping[str, Callable[[Settings], Iterable[Check]]]] = {
    "storage": check_storage,
    "database": check_database,
    "model": check_model,
    "ports": check_ports,
    "certificates": check_certificates,
    "passwords": check_passwords,
    "audit": check_audit,
    "alerts": check_alerts,
    "clock": check_clock,
}


def examine(settings: Settings) -> tuple[Check, ...]:
    """Check everything. The destinations are asked first, while no model computes: their answers are timed."""
    last = run_check("destinations", partial(check_destinations, settings))
    first = [run_check(name, partial(look, settings)) for name, look in _CHECKS.items()]
    return tuple(check for checks in (*first, last) for check in checks)
