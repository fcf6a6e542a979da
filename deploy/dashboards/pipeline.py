"""Where time goes, what waits, what fails, where results get stuck."""

from __future__ import annotations

from deploy.dashboards.panels import COUNT, PER_SECOND, RATIO, SECONDS, Dashboard, Kind, Panel

_TIME = (
    Panel(
        title="Step, 95 of 100 below",
        description="Time of each step over five minutes: receive and sync an object, route, decode, read by the "
        "network, write the outputs, deliver one of them.",
        queries={"{{step}}": 'max by (step) (instance:cxr_step_duration_seconds:p95_5m{instance=~"$instance"})'},
        unit=SECONDS,
    ),
    Panel(
        title="Busy with",
        description="Seconds spent in each step per second, all threads together: what a faster machine would help.",
        queries={
            "{{step}}": 'sum by (step) (rate(cxr_step_duration_seconds_sum{instance=~"$instance"}[$__rate_interval]))'
        },
        unit=COUNT,
        kind=Kind.STACK,
    ),
    Panel(
        title="Studies finished",
        description="Rounds finished per second. Nothing while studies wait: runbook, CxrWorkerDead.",
        queries={
            "{{instance}}": "sum by (instance) "
            '(rate(cxr_step_duration_seconds_count{instance=~"$instance",step="finish"}[$__rate_interval]))'
        },
        unit=PER_SECOND,
    ),
    Panel(
        title="Tokens per second",
        description="How fast the sentence generator writes while it writes.",
        queries={"{{instance}}": 'instance:cxr_generation:tokens_per_second_5m{instance=~"$instance"}'},
        unit=COUNT,
    ),
)

_QUEUES = (
    Panel(
        title="Queue depth",
        description="Studies and deliveries that wait.",
        queries={"{{instance}} {{queue}}": 'cxr_waiting{instance=~"$instance"}'},
        unit=COUNT,
    ),
    Panel(
        title="Oldest waiting",
        description="Age of the oldest study and delivery that waits. Studies above 15 minutes: runbook, "
        "CxrStudiesStuck.",
        queries={"{{instance}} {{queue}}": 'cxr_oldest_waiting_seconds{instance=~"$instance"}'},
        unit=SECONDS,
        steps=(300, 900),
    ),
    Panel(
        title="Studies by state",
        description="Where studies are; finished ones stay until they are removed from disk.",
        queries={"{{state}}": 'sum by (state) (cxr_studies{instance=~"$instance"})'},
        unit=COUNT,
    ),
    Panel(
        title="Not read, by reason",
        description="Images per hour that got an answer but no reading. Much of one kind may be a wrong rule "
        "at the PACS.",
        queries={
            "{{outcome}}": 'sum by (outcome) (increase(cxr_films_total{instance=~"$instance",outcome!="read"}[1h]))'
        },
        unit=COUNT,
        kind=Kind.STACK,
    ),
)

_FAILURES = (
    Panel(
        title="Failures by stage and reason",
        description="Failures per hour. Unforeseen ones in plan, read, write or finish park their study: `status` says "
        "where.",
        queries={
            "{{stage}}: {{reason}}": 'sum by (stage, reason) (increase(cxr_failures_total{instance=~"$instance"}[1h]))'
        },
        unit=COUNT,
        kind=Kind.STACK,
    ),
    Panel(
        title="Share that failed",
        description="Failures outside delivery, as a part of all films and failures of 15 minutes. Above 5 of 100: "
        "runbook, CxrFailureRate.",
        queries={"{{instance}}": 'instance:cxr_failures:ratio_15m{instance=~"$instance"}'},
        unit=RATIO,
        steps=(0.02, 0.05),
    ),
)

_DESTINATIONS = (
    Panel(
        title="Attempts",
        description="Delivery attempts per second: sent, delayed (tried again later), parked (a person must look).",
        queries={
            "{{destination}} {{outcome}}": "sum by (destination, outcome) "
            '(rate(cxr_deliveries_total{instance=~"$instance"}[$__rate_interval]))'
        },
        unit=PER_SECOND,
        kind=Kind.STACK,
    ),
    Panel(
        title="Stopped",
        description="1 while a destination's deliveries were tried in vain. For 5 minutes: runbook, "
        "CxrDestinationStopped.",
        queries={"{{instance}} {{destination}}": 'cxr_destination_paused{instance=~"$instance"}'},
        unit=COUNT,
        steps=(1,),
    ),
    Panel(
        title="Oldest delivery",
        description="Age of the oldest delivery that waits, by destination.",
        queries={"{{instance}} {{destination}}": 'cxr_destination_oldest_waiting_seconds{instance=~"$instance"}'},
        unit=SECONDS,
        steps=(300, 3600),
    ),
    Panel(
        title="Waiting and parked",
        description="Deliveries that are not done, by destination and state.",
        queries={
            "{{destination}} {{state}}": "sum by (destination, state) "
            '(cxr_destination_deliveries{instance=~"$instance",state!="sent"})'
        },
        unit=COUNT,
        kind=Kind.STACK,
    ),
)

DASHBOARD = Dashboard(
    name="chex-pipeline",
    title="ChEX Node: pipeline",
    description="Where time goes, what waits, what fails, where results get stuck.",
    rows={"Time": _TIME, "Queues": _QUEUES, "Failures": _FAILURES, "Destinations": _DESTINATIONS},
)
