"""The first look: does it work, does it keep up, does anybody have to act."""

from __future__ import annotations

from deploy.dashboards.panels import COUNT, PER_SECOND, RATIO, SECONDS, Dashboard, Kind, Panel, of_ledger

_STUDIES, _PARKED = 'queue="studies"', 'state="parked"'

_STATE = (
    Panel(
        title="Ready",
        description="Whether every part of every process is good: listener, orders, model, disk, workers. No: "
        "runbook, CxrNotReady; down: CxrNodeDown.",
        queries={
            "ready": 'min((up{job="chex-node",instance=~"$instance"} == 0) - 1 or cxr_ready{instance=~"$instance"})'
        },
        unit=COUNT,
        kind=Kind.NUMBER,
        steps=(1, 0.5),
        words={"1": "yes", "0": "no", "-1": "down"},
        width=4,
        height=4,
    ),
    Panel(
        title="Alerts firing",
        description="Alerts that fire now, of any node; one that fires for several findings counts once. The runbook "
        "has a section on each.",
        queries={
            "alerts": 'count(count by (alertname, namespace, service) (ALERTS{alertname=~"Cxr.*",alertstate="firing"}))'
            " or vector(0)"
        },
        unit=COUNT,
        kind=Kind.NUMBER,
        steps=(1,),
        width=4,
        height=4,
    ),
    Panel(
        title="Studies waiting",
        description="Studies that were received and are not finished, quiet time included.",
        queries={"studies": f"sum({of_ledger('cxr_waiting', where=_STUDIES)})"},
        unit=COUNT,
        kind=Kind.NUMBER,
        steps=(50, 200),
        width=4,
        details="chex-pipeline",
        height=4,
    ),
    Panel(
        title="Oldest waiting",
        description="Age of the oldest unfinished study. Above 15 minutes: runbook, CxrStudiesStuck.",
        queries={"age": 'max(cxr_oldest_waiting_seconds{instance=~"$instance",queue="studies"})'},
        unit=SECONDS,
        kind=Kind.NUMBER,
        steps=(300, 900),
        width=4,
        details="chex-pipeline",
        height=4,
    ),
    Panel(
        title="Parked",
        description="Studies and deliveries that wait for a person: `python -m node status`, then `retry`.",
        queries={
            "parked": f"sum({of_ledger('cxr_studies', where=_PARKED)}) + "
            f"sum({of_ledger('cxr_destination_deliveries', 'destination', where=_PARKED)})"
        },
        unit=COUNT,
        kind=Kind.NUMBER,
        steps=(1,),
        width=4,
        details="chex-pipeline",
        height=4,
    ),
    Panel(
        title="Disk free",
        description="Free part of the disk of the fullest node.",
        queries={"free": 'min(cxr_spool_free_bytes{instance=~"$instance"} / cxr_spool_capacity_bytes)'},
        unit=RATIO,
        kind=Kind.NUMBER,
        steps=(0.15, 0.05),
        width=4,
        details="chex-network",
        height=4,
    ),
)

_FILMS = 'sum(increase(cxr_films_total{instance=~"$instance"}[%s]))'

_AMOUNT = (
    Panel(
        title="Films in an hour",
        description="Films read, or answered with the reason why not, in the last 60 minutes.",
        queries={"films": _FILMS % "1h"},
        unit=COUNT,
        kind=Kind.NUMBER,
        width=6,
        height=4,
    ),
    Panel(
        title="Films today",
        description="The same since midnight, by the clock of the browser.",
        queries={"films": _FILMS % "$__range"},
        unit=COUNT,
        kind=Kind.NUMBER,
        since="now/d",
        width=6,
        height=4,
    ),
    Panel(
        title="Since the last film",
        description="Time since a film was last read or answered, to within five minutes. Long in the day: runbook, "
        "CxrNoFilms.",
        queries={"time": f"time() - max_over_time(timestamp({_FILMS % '5m'} > 0)[1d:1m])"},
        unit=SECONDS,
        kind=Kind.NUMBER,
        width=6,
        height=4,
        empty="none in a day",
    ),
    Panel(
        title="Answered within a minute",
        description="Share of rounds in the last hour whose last output was delivered within 60 seconds of the last "
        "film. The aim is 0.95; below 0.7: runbook, CxrAnswersLate.",
        queries={"share": "min(service:cxr_turnaround_within_minute:ratio_1h)"},
        unit=RATIO,
        kind=Kind.NUMBER,
        steps=(0.95, 0.7),
        width=6,
        details="chex-pipeline",
        height=4,
        empty="no films yet",
    ),
)

_FLOW = (
    Panel(
        title="Films",
        description="Films per second, read or answered with the reason why not.",
        queries={"{{outcome}}": 'sum by (outcome) (rate(cxr_films_total{instance=~"$instance"}[$__rate_interval]))'},
        unit=PER_SECOND,
        kind=Kind.STACK,
    ),
    Panel(
        title="Turnaround",
        description="From the last arrival of a round, or the correction that it follows, to its last delivery, in the "
        "hour before: half of the rounds are faster than the first line, 95 of 100 faster than the second. The quiet "
        "time is part of it.",
        queries={
            "half": 'max(instance:cxr_turnaround_seconds:p50_1h{instance=~"$instance"})',
            "95 of 100": 'max(instance:cxr_turnaround_seconds:p95_1h{instance=~"$instance"})',
        },
        unit=SECONDS,
        empty="no films yet",
    ),
    Panel(
        title="Waiting",
        description="Studies and deliveries that wait. A line that only rises: the node does not keep up, or something "
        "stopped.",
        queries={"{{queue}}": f"sum by (queue) ({of_ledger('cxr_waiting', 'queue')})"},
        unit=COUNT,
        width=8,
    ),
    Panel(
        title="Failures",
        description="Failures by stage, per second. One is nothing; a share above 5 of 100: runbook, CxrFailureRate.",
        queries={"{{stage}}": 'sum by (stage) (rate(cxr_failures_total{instance=~"$instance"}[$__rate_interval]))'},
        unit=PER_SECOND,
        kind=Kind.STACK,
        width=8,
    ),
    Panel(
        title="Late answers, of what the aim allows",
        description="Burn rate of the service level: the share of rounds that took more than a minute, over the 5 of "
        "100 that may. At 1 the aim is just met; above 6 in both windows: runbook, CxrAnswersLate.",
        queries={
            "{{service}}, one hour": "service:cxr_turnaround_burn:rate_1h",
            "{{service}}, 15 minutes": "service:cxr_turnaround_burn:rate_15m",
        },
        unit=COUNT,
        steps=(1, 6),
        width=8,
        empty="no films yet",
    ),
)

_IDENTITY = (
    Panel(
        title="What runs",
        description="Program, model and prompt set of each node, as printed in every output.",
        queries={"{{version}}, {{model}}, {{prompts}}": 'cxr_build_info{instance=~"$instance"}'},
        unit=COUNT,
        kind=Kind.NAMES,
        height=5,
    ),
    Panel(
        title="Engine",
        description="The engine in use, and why it is not the wanted one: none if it is.",
        queries={"{{instance}}: {{engine}}, fall-back {{fallback}}": 'cxr_engine_info{instance=~"$instance"}'},
        unit=COUNT,
        kind=Kind.NAMES,
        height=5,
    ),
)

DASHBOARD = Dashboard(
    name="chex-overview",
    title="ChEX Node: overview",
    description="Does it work, does it keep up, does anybody have to act.",
    rows={"Now": _STATE, "Amount": _AMOUNT, "Flow": _FLOW, "Identity": _IDENTITY},
)
