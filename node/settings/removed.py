"""The settings keys that this program once had, and what serves instead; each is refused in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REMOVED: Final[Mapping[str, str]] = {
    "alerts.mail": "Alertmanager, which sends mail of the node's alerts (deploy/prometheus/alertmanager.yml)",
    "audit.host": "rsyslog, which sends the lines of audit.file (deploy/rsyslog/chex-node-audit.conf)",
    "audit.max_waiting_mib": "the queue of rsyslog (deploy/rsyslog/chex-node-audit.conf)",
    "audit.port": "rsyslog, which sends the lines of audit.file (deploy/rsyslog/chex-node-audit.conf)",
    "audit.tls": "rsyslog, which sends the lines of audit.file (deploy/rsyslog/chex-node-audit.conf)",
    "orders.patient_updates": "the archive, which reconciles its objects (docs/integrate/hl7.md)",
    "storage.s3": "snapshots of the volume, or restic (docs/operate/backup.md)",
    "trace": "the log, which says how many seconds each film, round and delivery took",
}
"""By full key, without the number of a table."""
