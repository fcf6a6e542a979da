"""The steps of a round and of a delivery with a real spool and ledger, for tests that call them one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast
from zoneinfo import ZoneInfo

from node.deliver.commitment import Commitments
from node.deliver.connections import Associations
from node.deliver.delivery import Sending
from node.deliver.kinds import Calling, sender_of
from node.domain import Delivery
from node.jobs.round_steps import Steps
from node.metrics import Metrics
from node.orders.store import OrderStore
from node.output_kinds import DEFAULT_OUTPUTS
from node.pipeline import Pipeline
from node.read import prompts
from node.read.model import RadiographReader
from node.rounds.films import FilmReader
from node.settings.destinations import DestinationSettings, DestinationTable
from node.store.ledger import Ledger
from node.store.spool import Spool
from tests.support.fakes import ScriptedReader


def pipeline(
    spool: Spool,
    *,
    reader: RadiographReader | None = None,
    kinds: Sequence[str] = DEFAULT_OUTPUTS,
    zone: str = "UTC",
) -> Pipeline:
    """Read with the scripted reader or another one, and write outputs of these kinds."""
    return Pipeline(
        films=FilmReader(spool=spool, reader=reader or ScriptedReader(), prompts=prompts.load("chexpert14")),
        orders=OrderStore(spool.directory),
        zone=ZoneInfo(zone),
        kinds=tuple(kinds),
    )


def steps(pipeline: Pipeline, ledger: Ledger, *destinations: DestinationSettings) -> Steps:
    """Queue what is written for these destinations."""
    return Steps(
        pipeline=pipeline,
        ledger=ledger,
        metrics=Metrics(),
        destinations={destination.name: destination for destination in destinations},
        stat_seconds=900.0,
    )


def run_round(steps: Steps, study_uid: str) -> dict[str, list[Delivery]]:
    """Read what is new of a study; returns what is to be delivered to each destination."""
    plan = steps.plan(study_uid)
    assert plan is not None
    outcomes = [steps.read(study_uid, file) for file in plan.files]
    written = steps.write(plan)
    assert written is not None
    steps.finish(plan, cast(list[str], outcomes), written)
    return {name: list(several) for name, several in written.queued.deliveries.items()}


def deliver(
    content: bytes,
    destination: DestinationSettings,
    *,
    calling_aet: str,
    associations: Associations | None = None,
) -> None:
    """Send the content of an output file, as a delivery does."""
    sender_of(destination).send(content, destination, Calling(ae_title=calling_aet, associations=associations))


def probe(destination: DestinationSettings, *, calling_aet: str) -> None:
    """Probe a destination, as one that was down is."""
    sender_of(destination).probe(destination, Calling(ae_title=calling_aet))


def sending(
    spool: Spool,
    ledger: Ledger,
    *destinations: DestinationSettings,
    report_seconds: float = 60.0,
    rewrite: Callable[[str], None] = lambda _study: None,
) -> Sending:
    """Send from a spool to these destinations; nobody writes a lost output again unless `rewrite` does."""
    metrics = Metrics()
    return Sending(
        spool=spool,
        ledger=ledger,
        metrics=metrics,
        destinations={destination.name: destination for destination in destinations},
        commitments=Commitments(ledger, DestinationTable(destinations), metrics),
        rewrite=rewrite,
        calling_aet="CHEX",
        report_seconds=report_seconds,
    )
