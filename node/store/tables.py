"""The ledger's tables, for `ledger` and `ledger_queries`."""

from __future__ import annotations

import sqlalchemy as sa

from node.domain import ROUTINE, DeliveryState

TAKEN = (DeliveryState.SENT, DeliveryState.COMMITTED)
"""States of a delivery that its destination has taken."""

TABLES = sa.MetaData()
STUDIES = sa.Table(
    "studies",
    TABLES,
    sa.Column("uid", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("stage", sa.String(32)),
    sa.Column("reason", sa.Text),
    sa.Column("changed_at", sa.Float, nullable=False),
    # Whether `reviews`, `counted_films` and `counted_findings` have its rows.
    sa.Column("is_counted", sa.Boolean, nullable=False, server_default=sa.false()),
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
    # When it was sent, first failed, or last found its destination down.
    sa.Column("since", sa.Float, nullable=False, server_default="0"),
    # Since when its attempts fail, until it is sent or parked.
    sa.Column("failed_at", sa.Float),
    # Whether the destination has still to commit to it; how often it reported that it cannot keep the object.
    sa.Column("awaits_commitment", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("commit_failures", sa.Integer, nullable=False, server_default="0"),
    # How often its destination's answer left open whether it took the object.
    sa.Column("unclear_answers", sa.Integer, nullable=False, server_default="0"),
    sa.Column("priority", sa.String(16), nullable=False, server_default=ROUTINE),
)
sa.Index("deliveries_by_priority", DELIVERIES.c.destination, DELIVERIES.c.priority)
TRANSACTIONS = sa.Table(
    "transactions",
    TABLES,
    sa.Column("uid", sa.String(64), primary_key=True),
    sa.Column("delivery_id", sa.String(200), primary_key=True),
)

# Which workflow has exclusive use of a study. Claims are not released: a holder that has ended has lost its claim.
CLAIMS = sa.Table(
    "claims",
    TABLES,
    sa.Column("study_uid", sa.String(64), primary_key=True),
    sa.Column("holder", sa.String(200), nullable=False),
)

# The films that wait for review.
REVIEWS = sa.Table(
    "reviews",
    TABLES,
    sa.Column("study_uid", sa.String(64), primary_key=True),
    sa.Column("film", sa.String(64), primary_key=True),
    sa.Column("reason", sa.String(16), nullable=False),
    sa.Column("is_stat", sa.Boolean, nullable=False),
    sa.Column("urgency", sa.Integer, nullable=False),
    sa.Column("received_at", sa.Float, nullable=False),
)

# The films of rounds with their findings and assessments, for statistics and searches. No patient data.
COUNTED_FILMS = sa.Table(
    "counted_films",
    TABLES,
    sa.Column("study_uid", sa.String(64), primary_key=True),
    sa.Column("film", sa.String(64), primary_key=True),
    sa.Column("received_at", sa.Float, nullable=False),
    sa.Column("day", sa.String(10), nullable=False, index=True),
    sa.Column("scanner", sa.String(64), nullable=False),
    sa.Column("station", sa.String(64), nullable=False),
    sa.Column("outcome", sa.String(32), nullable=False),
    sa.Column("has_present", sa.Boolean, nullable=False),
    sa.Column("has_open", sa.Boolean, nullable=False),
)
COUNTED_FINDINGS = sa.Table(
    "counted_findings",
    TABLES,
    sa.Column("study_uid", sa.String(64), primary_key=True),
    sa.Column("film", sa.String(64), primary_key=True),
    sa.Column("prompt", sa.Text, primary_key=True, index=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reader", sa.String(16), nullable=False),
)

# The patients and requests of a study's films (`worklist`): patient data, which is deleted with the study.
PATIENTS = sa.Table(
    "patients",
    TABLES,
    sa.Column("study_uid", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("patient_id", sa.Text, nullable=False, index=True),
    sa.Column("issuer", sa.Text, nullable=False),
    sa.Column("accession", sa.Text, nullable=False),
    sa.Column("study_date", sa.String(8), nullable=False),
    sa.Column("modality", sa.Text, nullable=False),
    sa.Column("station", sa.Text, nullable=False),
    sa.Column("search", sa.Text, nullable=False),
)

IS_TO_BE_SENT = DELIVERIES.c.state.in_((DeliveryState.WAITING, DeliveryState.SENDING))
IS_AWAITED = (DELIVERIES.c.state == DeliveryState.SENT) & DELIVERIES.c.awaits_commitment
"""Condition: a delivery is to be sent, or its destination has still to commit to it."""


def is_undelivered(destination: str = "") -> sa.ColumnElement[bool]:
    """Return a condition: a finished study has deliveries (to a destination), and none of them was taken.

    destination: its name; "" for all
    """
    of_study = sa.select(DELIVERIES.c.id).where(DELIVERIES.c.study_uid == STUDIES.c.uid)
    if destination:
        of_study = of_study.where(DELIVERIES.c.destination == destination)
    return (STUDIES.c.state == "finished") & of_study.exists() & ~of_study.where(DELIVERIES.c.state.in_(TAKEN)).exists()


def has_parked(destination: str = "") -> sa.ColumnElement[bool]:
    """Return a condition: a study, or a delivery of it, is parked; with a destination, a delivery to it is."""
    is_parked = (DELIVERIES.c.study_uid == STUDIES.c.uid) & (DELIVERIES.c.state == DeliveryState.PARKED)
    if destination:
        return sa.select(DELIVERIES.c.id).where(is_parked, DELIVERIES.c.destination == destination).exists()
    return (STUDIES.c.state == "parked") | sa.select(DELIVERIES.c.id).where(is_parked).exists()
