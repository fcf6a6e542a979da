"""Our tables, which `ledger` alone reads and writes."""

from __future__ import annotations

import sqlalchemy as sa

TABLES = sa.MetaData()
STUDIES = sa.Table(
    "studies",
    TABLES,
    sa.Column("uid", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("stage", sa.String(32)),
    sa.Column("reason", sa.Text),
    sa.Column("changed_at", sa.Float, nullable=False),
)
DELIVERIES = sa.Table(
    "deliveries",
    TABLES,
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("destination", sa.String(200), nullable=False),
    sa.Column("study_uid", sa.String(64), nullable=False, index=True),
    sa.Column("sop_instance_uid", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("created_at", sa.Float, nullable=False),
    # When it was sent, first tried in vain, or last found its destination down. An older file gets this column.
    sa.Column("since", sa.Float, nullable=False, server_default="0"),
    # It was sent with a wish for storage commitment; how often the answer was that the object cannot be kept.
    sa.Column("awaits_commitment", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("commit_failures", sa.Integer, nullable=False, server_default="0"),
)
TRANSACTIONS = sa.Table(
    "transactions",
    TABLES,
    sa.Column("uid", sa.String(64), primary_key=True),
    sa.Column("delivery_id", sa.String(200), primary_key=True),
)

# Which workflow has a study to itself. Nobody gives it back: a holder that is over, the engine knows, has lost it.
CLAIMS = sa.Table(
    "claims",
    TABLES,
    sa.Column("study_uid", sa.String(64), primary_key=True),
    sa.Column("holder", sa.String(200), nullable=False),
)
