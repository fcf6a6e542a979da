"""Whether the network still answers as it did: positive rates, probabilities, drift, per prompt and scanner."""

from __future__ import annotations

from deploy.dashboards.panels import COUNT, PER_SECOND, RATIO, SECONDS, Dashboard, Kind, Panel, of_ledger

_PSI = 'max by (prompt, scanner) (cxr_drift_psi{instance=~"$instance",scanner=~"$scanner",prompt=~"$prompt"})'

_DRIFT = (
    Panel(
        title="Drift now",
        description="Population stability index of the last 200 films against the first 500 that these weights and "
        "prompts read; the 16 largest. Above 0.1 something moved; above 0.2: runbook, CxrDrift. `all` is every scanner "
        "together.",
        queries={"{{prompt}}, {{scanner}}": f"sort_desc(topk(16, {_PSI}))"},
        unit=COUNT,
        kind=Kind.BARS,
        steps=(0.1, 0.2),
        height=12,
        empty="not enough films yet",
    ),
    Panel(
        title="Drift over time",
        description="The same index where it is above 0.1; a step shows when it began, which tells what changed then.",
        queries={"{{prompt}}, {{scanner}}": f"{_PSI} > 0.1"},
        unit=COUNT,
        steps=(0.1, 0.2),
        height=12,
        empty="not enough films yet, or nothing above 0.1",
    ),
    Panel(
        title="Films in the windows",
        description="How full the windows are: an index needs 500 films of reference and 200 after them.",
        queries={
            "{{scanner}} {{window}}": "max by (scanner, window) "
            '(cxr_drift_films{instance=~"$instance",scanner=~"$scanner"})'
        },
        unit=COUNT,
        kind=Kind.BARS,
    ),
    Panel(
        title="Films by scanner",
        description="Films read per second, by scanner model. A new name is a new model: look at its drift first.",
        queries={
            "{{scanner}}": "max by (scanner) "
            '(rate(cxr_finding_probability_count{instance=~"$instance",scanner=~"$scanner"}[$__rate_interval]))'
        },
        unit=PER_SECOND,
        kind=Kind.STACK,
    ),
)

_ANSWERS = (
    Panel(
        title="Positive rate, one day",
        description="Part of the films of one day on which a finding is present, by prompt.",
        queries={
            "{{prompt}}": 'avg by (prompt) (instance_prompt:cxr_findings_present:ratio_1d{instance=~"$instance"})'
        },
        unit=RATIO,
        height=10,
    ),
    Panel(
        title="To be reviewed",
        description="Part of the films that a person has to look at, by prompt: neither present nor absent, or not "
        "calibrated.",
        queries={
            "{{prompt}}": "sum by (prompt) "
            '(increase(cxr_findings_total{instance=~"$instance",scanner=~"$scanner",'
            'state=~"indeterminate|uncalibrated"}[1d])) / '
            "sum by (prompt) "
            '(increase(cxr_findings_total{instance=~"$instance",scanner=~"$scanner"}[1d]))'
        },
        unit=RATIO,
        height=10,
    ),
    Panel(
        title="Films to review",
        description="Films that wait for a reader on the page /review, by reason: the network contradicts itself on a "
        "finding; if not, one is neither present nor absent; if not, a threshold was not measured on such films. A "
        "line that only rises: nobody judges them.",
        queries={"{{reason}}": f"sum by (reason) ({of_ledger('cxr_review_films', 'reason')})"},
        unit=COUNT,
        kind=Kind.STACK,
    ),
    Panel(
        title="Withheld sentences",
        description="Generated sentences per second that did not say what was decided, by reason; DICOM has a table "
        "of the reasons.",
        queries={
            "{{reason}}": "sum by (reason) "
            '(rate(cxr_sentences_withheld_total{instance=~"$instance"}[$__rate_interval]))'
        },
        unit=PER_SECOND,
        kind=Kind.STACK,
    ),
    Panel(
        title="Questions",
        description="Questions about films in a day, by where they came from.",
        queries={"{{source}}": 'sum by (source) (increase(cxr_questions_total{instance=~"$instance"}[1d]))'},
        unit=COUNT,
        kind=Kind.STACK,
    ),
    Panel(
        title="Time to an answer",
        description="Seconds from a question about a film to its answer, 95 of 100.",
        queries={
            "p95": "histogram_quantile(0.95, sum by (le) "
            '(rate(cxr_question_seconds_bucket{instance=~"$instance"}[$__rate_interval]))) >= 0'
        },
        unit=SECONDS,
        empty="no questions",
    ),
    Panel(
        title="Corrections",
        description="What readers accepted, rejected, moved, added or reworded in a day, by finding.",
        queries={
            "{{prompt}}, {{kind}}": 'sum by (prompt, kind) (increase(cxr_corrections_total{instance=~"$instance"}[1d]))'
        },
        unit=COUNT,
        kind=Kind.STACK,
    ),
    Panel(
        title="Probability, half of the films below",
        description="Median probability of each prompt over one day.",
        queries={
            "{{prompt}}": 'avg by (prompt) (instance_prompt:cxr_finding_probability:p50_1d{instance=~"$instance"})'
        },
        unit=RATIO,
        height=10,
    ),
    Panel(
        title="Probability, 90 of 100 films below",
        description="The upper end of each prompt's probabilities over one day.",
        queries={
            "{{prompt}}": 'avg by (prompt) (instance_prompt:cxr_finding_probability:p90_1d{instance=~"$instance"})'
        },
        unit=RATIO,
        height=10,
    ),
)

_ENGINE = (
    Panel(
        title="Model and prompt set",
        description="What answers, as printed in every output.",
        queries={"{{instance}}: {{model}}, {{prompts}}": 'cxr_build_info{instance=~"$instance"}'},
        unit=COUNT,
        kind=Kind.NAMES,
    ),
    Panel(
        title="Difference from the network",
        description="Largest difference of the runtime in use from the network, as a part of what is allowed, by "
        "stage: when its graphs were made; on a GPU at its start and with every 100th film.",
        queries={
            "{{stage}}": 'max by (stage) (cxr_parity_max_difference{instance=~"$instance"} / cxr_parity_tolerance)'
        },
        unit=RATIO,
        kind=Kind.BARS,
        steps=(0.5, 1),
    ),
)

_GROUPS = (
    Panel(
        title="Positive rate by group, seven days",
        description="Part of the films of a group on which a finding is present, where 50 films of the group or more "
        "were read so far. Groups differ in what they have; a step in one group only is the thing to look at. Choose a "
        "finding above, or there are many lines.",
        queries={
            "{{prompt}}, {{group}}": "sum by (prompt, group) "
            '(increase(cxr_group_findings_total{instance=~"$instance",prompt=~"$prompt",state="present"}[7d])) / '
            "(sum by (prompt, group) "
            '(increase(cxr_group_findings_total{instance=~"$instance",prompt=~"$prompt"}[7d])) '
            'and on (group) max by (group) (cxr_group_films{instance=~"$instance"}) >= 50)'
        },
        unit=RATIO,
        height=12,
        empty="not enough films yet",
    ),
    Panel(
        title="Median probability by group",
        description="Of the last 200 films of a group, to a tenth; nothing below 50 films.",
        queries={
            "{{prompt}}, {{group}}": "max by (prompt, group) "
            '(cxr_group_probability{instance=~"$instance",prompt=~"$prompt",quantile="0.5"})'
        },
        unit=RATIO,
        height=12,
        empty="not enough films yet",
    ),
    Panel(
        title="Drift by group",
        description="Population stability index of a group's last 200 films against its first 500, the largest of all "
        "prompts. Above 0.1 something moved.",
        queries={"{{group}}": 'max by (group) (cxr_group_drift_psi{instance=~"$instance"})'},
        unit=COUNT,
        kind=Kind.BARS,
        steps=(0.1, 0.2),
        height=12,
        empty="not enough films yet",
    ),
    Panel(
        title="Films of each group",
        description="Films in the windows of each group, at most 700; sex, age band and projection, from the header "
        "or the picture.",
        queries={"{{group}}": 'max by (group) (cxr_group_films{instance=~"$instance"})'},
        unit=COUNT,
        kind=Kind.BARS,
        height=12,
        empty="no films yet",
    ),
)

_SCANNERS = (
    Panel(
        title="Positive rate by scanner, seven days",
        description="Part of the films of a scanner on which a finding is present; nothing below 50 films. "
        "A step of one scanner only is the thing to look at.",
        queries={
            "{{prompt}}, {{scanner}}": "max by (prompt, scanner) "
            '(instance_prompt_scanner:cxr_findings_present:ratio_7d{instance=~"$instance",scanner=~"$scanner"})'
        },
        unit=RATIO,
        height=12,
    ),
    Panel(
        title="Median probability by scanner",
        description="Of seven days; nothing below 50 films.",
        queries={
            "{{prompt}}, {{scanner}}": "max by (prompt, scanner) "
            '(instance_prompt_scanner:cxr_finding_probability:p50_7d{instance=~"$instance",scanner=~"$scanner"})'
        },
        unit=RATIO,
        height=12,
    ),
    Panel(
        title="Probability by scanner, 90 of 100 films below",
        description="The upper end of seven days; nothing below 50 films.",
        queries={
            "{{prompt}}, {{scanner}}": "max by (prompt, scanner) "
            '(instance_prompt_scanner:cxr_finding_probability:p90_7d{instance=~"$instance",scanner=~"$scanner"})'
        },
        unit=RATIO,
        height=12,
    ),
)

DASHBOARD = Dashboard(
    name="chex-model",
    title="ChEX Node: model and drift",
    description="Whether the network still answers as it did.",
    rows={
        "Drift": _DRIFT,
        "Answers": _ANSWERS,
        "Scanners": _SCANNERS,
        "Groups of patients": _GROUPS,
        "Engine": _ENGINE,
    },
    scanner=True,
)
