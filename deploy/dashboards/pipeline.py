"""Where time goes, what waits, what fails, where results get stuck."""

from __future__ import annotations

from deploy.dashboards.panels import BYTES, COUNT, PER_SECOND, RATIO, SECONDS, Dashboard, Kind, Panel, of_ledger

_NOT_DONE = 'state!~"sent|committed|abandoned"'

_TIME = (
    Panel(
        title="Step, 95 of 100 below",
        description="Time of each step over five minutes: receive and sync an object, route, decode, read by the "
        "network, write the outputs, deliver one of them, ask for its commitment.",
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
        queries={"{{instance}}": 'instance:cxr_generation:tokens_per_second_5m{instance=~"$instance"} >= 0'},
        unit=COUNT,
        empty="no sentences generated",
    ),
)

_QUEUES = (
    Panel(
        title="Queue depth",
        description="Studies and deliveries that wait.",
        queries={"{{service}} {{queue}}": of_ledger("cxr_waiting", "queue")},
        unit=COUNT,
    ),
    Panel(
        title="Oldest waiting",
        description="Age of the oldest study and delivery that waits. Studies above 15 minutes: runbook, "
        "CxrStudiesStuck.",
        queries={"{{service}} {{queue}}": of_ledger("cxr_oldest_waiting_seconds", "queue")},
        unit=SECONDS,
        steps=(300, 900),
    ),
    Panel(
        title="Studies by state",
        description="Where studies are; finished ones stay until they are removed from disk.",
        queries={"{{state}}": f"sum by (state) ({of_ledger('cxr_studies', 'state')})"},
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
        description="Failures of receiving and reading, as a part of all films and failures of 15 minutes, all "
        "processes of a service together. Above 5 of 100: runbook, CxrFailureRate.",
        queries={"{{service}}": "service:cxr_failures:ratio_15m"},
        unit=RATIO,
        steps=(0.02, 0.05),
    ),
)

_DESTINATIONS = (
    Panel(
        title="Attempts",
        description="Per second: sent, committed (the archive said that it keeps it), delayed (tried again later), "
        "parked (a person must look).",
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
        queries={"{{service}} {{destination}}": of_ledger("cxr_destination_paused", "destination")},
        unit=COUNT,
        steps=(1,),
    ),
    Panel(
        title="Oldest delivery",
        description="Age of the oldest delivery that waits, by destination.",
        queries={"{{service}} {{destination}}": of_ledger("cxr_destination_oldest_waiting_seconds", "destination")},
        unit=SECONDS,
        steps=(300, 3600),
    ),
    Panel(
        title="Waiting and parked",
        description="Deliveries that are not done, by destination and state.",
        queries={
            "{{destination}} {{state}}": "sum by (destination, state) "
            f"({of_ledger('cxr_destination_deliveries', 'destination', 'state', where=_NOT_DONE)})"
        },
        unit=COUNT,
        kind=Kind.STACK,
    ),
    Panel(
        title="To be committed",
        description="Outputs that an archive was sent and has yet to say that it keeps (storage commitment). Nothing "
        "where a destination has it off.",
        queries={"{{service}} {{destination}}": of_ledger("cxr_destination_uncommitted", "destination")},
        unit=COUNT,
    ),
    Panel(
        title="Oldest to be committed",
        description="How long ago the oldest of them was sent. Above six hours: runbook, CxrCommitmentOverdue.",
        queries={"{{service}} {{destination}}": of_ledger("cxr_destination_oldest_uncommitted_seconds", "destination")},
        unit=SECONDS,
        steps=(3600, 21600),
    ),
)

_PROCESS = 'job="chex-node",instance=~"$instance"'

_PROCESSES = (
    Panel(
        title="Memory",
        description="Memory of each process that is resident in the machine. It grows while a model is opened and "
        "stays level after the first films.",
        queries={"{{instance}}": f"process_resident_memory_bytes{{{_PROCESS}}}"},
        unit=BYTES,
    ),
    Panel(
        title="Processor",
        description="Cores that each process keeps busy. As many as the machine has: films wait for the processor.",
        queries={"{{instance}}": f"rate(process_cpu_seconds_total{{{_PROCESS}}}[$__rate_interval])"},
        unit=COUNT,
    ),
    Panel(
        title="Open files",
        description="Share of the open files and connections that the process may have (`ulimit -n`). At 1 it accepts "
        "no more connections.",
        queries={"{{instance}}": f"process_open_fds{{{_PROCESS}}} / process_max_fds"},
        unit=RATIO,
        steps=(0.8, 0.95),
    ),
    Panel(
        title="Garbage collections",
        description="Runs of Python's garbage collector per second, by generation. Many of generation 2: objects "
        "pile up.",
        queries={"{{instance}} {{generation}}": f"rate(python_gc_collections_total{{{_PROCESS}}}[$__rate_interval])"},
        unit=PER_SECOND,
    ),
)

DASHBOARD = Dashboard(
    name="chex-pipeline",
    title="ChEX Node: pipeline",
    description="Where time goes, what waits, what fails, where results get stuck.",
    rows={
        "Time": _TIME,
        "Queues": _QUEUES,
        "Failures": _FAILURES,
        "Destinations": _DESTINATIONS,
        "Processes": _PROCESSES,
    },
)
