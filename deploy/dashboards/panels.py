"""What a dashboard is made of, and how Grafana's own builders turn it into Grafana's format.

A panel says in its description what it shows and what is good; its thresholds are those of the alerts where there is
one. Panels flow from left to right, 24 columns wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from grafana_foundation_sdk.builders import bargauge, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model

_DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_COLORS = ("green", "yellow", "red")

# The unit names of Grafana that the panels use.
COUNT, SECONDS, DAYS, BYTES, RATIO, PER_SECOND, BYTES_PER_SECOND = (
    "short", "s", "d", "bytes", "percentunit", "ops", "Bps",
)  # fmt: skip

_EVENTS = {
    "start": ("blue", 'process_start_time_seconds{job="chex-node",instance=~"$instance"} > time() - 60'),
    "other model": (
        "purple",
        'cxr_build_info{instance=~"$instance"} unless on (instance, model, prompts) cxr_build_info offset 2m '
        'and on (instance) up{job="chex-node"} offset 2m',
    ),
}
"""What every dashboard marks on its time axis: the color and the expression, which has a value for a minute or two."""


class Kind(Enum):
    """How a panel shows its queries."""

    NUMBER = "number"
    NAMES = "names"
    LINES = "lines"
    STACK = "stack"
    BARS = "bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    queries: legend and PromQL expression of each; legends name labels as `{{label}}`
    steps: values at which the color goes from green to yellow to red; with one step, to red; falling where low is bad
    words: texts shown for values
    empty: shown while the queries have no result
    since: the begin of the time that it shows, in Grafana's words, where that is not the dashboard's
    details: the name of the dashboard that tells more
    """

    title: str
    description: str
    queries: Mapping[str, str]
    unit: str
    kind: Kind = Kind.LINES
    steps: Sequence[float] = ()
    words: Mapping[str, str] | None = None
    empty: str = ""
    since: str = ""
    details: str = ""
    width: int = 12
    height: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard.

    name: of its file, and of its address in Grafana
    scanner: whether scanners and findings can be chosen
    """

    name: str
    title: str
    description: str
    rows: Mapping[str, Sequence[Panel]]
    scanner: bool = False


def of_ledger(metric: str, *labels: str, where: str = "") -> str:
    """Select what processes read in a database that they share: once for each `service`, not for each process.

    labels: those to keep besides; where: a further condition on labels
    """
    conditions = ",".join(filter(None, ('instance=~"$instance"', where)))
    return f"max by ({', '.join(('namespace', 'service', *labels))}) ({metric}{{{conditions}}})"


def build(dashboard: Dashboard) -> model.Dashboard:
    """Make Grafana's dashboard."""
    builder = (
        grafana.Dashboard(dashboard.title)
        .uid(dashboard.name)
        .description(dashboard.description)
        .tags(["chex-node"])
        .readonly()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(grafana.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_choice("instance", "Process", "label_values(cxr_ready, instance)"))
        .link(_link_to_the_others())
    )
    for name, (color, expression) in _EVENTS.items():
        event = grafana.AnnotationQuery().name(name).datasource(_DATASOURCE).enable(True).icon_color(color)
        builder.annotation(event.expr(expression))
    if dashboard.scanner:
        builder.with_variable(_choice("scanner", "Scanner", "label_values(cxr_drift_films, scanner)"))
        builder.with_variable(_choice("prompt", "Finding", "label_values(cxr_findings_total, prompt)"))
    for title, panels in dashboard.rows.items():
        builder.with_row(grafana.Row(title))
        for panel in panels:
            builder.with_panel(_panel(panel))
    return builder.build()


def _choice(name: str, label: str, query: str) -> grafana.QueryVariable:
    """A choice of label values; all of them at first."""
    return (
        grafana.QueryVariable(name)
        .label(label)
        .datasource(_DATASOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(text="All", value="$__all", selected=True))
    )


def _link_to_the_others() -> grafana.DashboardLink:
    link = grafana.DashboardLink("Dashboards").type(model.DashboardLinkType.DASHBOARDS)
    return link.tags(["chex-node"]).keep_time(True).include_vars(True).as_dropdown(True)


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel | bargauge.Panel:
    builder = _kind(panel.kind)
    builder.title(panel.title).description(panel.description).unit(panel.unit).datasource(_DATASOURCE)
    builder.span(panel.width).height(panel.height).thresholds(_thresholds(panel.steps))
    if panel.kind is Kind.NUMBER and panel.unit == COUNT:
        builder.decimals(0)  # `increase` extrapolates, and a part of a film would be shown
    if panel.empty:
        builder.no_value(panel.empty)
    if panel.since:
        builder.time_from(panel.since)
    if panel.details:
        address = f"/d/{panel.details}?${{__url_time_range}}&${{__all_variables}}"
        link = grafana.DashboardLink("More of this").type(model.DashboardLinkType.LINK).url(address)
        builder.links([link])
    if panel.words:
        options = {value: model.ValueMappingResult(text=text) for value, text in panel.words.items()}
        builder.mappings([model.ValueMap(options=options)])
    for number, (legend, expression) in enumerate(panel.queries.items()):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number))
        is_now = panel.kind in (Kind.NUMBER, Kind.NAMES, Kind.BARS)
        builder.with_target((query.instant() if is_now else query.range()).datasource(_DATASOURCE))
    return builder


def _kind(kind: Kind) -> stat.Panel | timeseries.Panel | bargauge.Panel:
    """An empty panel of a kind."""
    last = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
    if kind in (Kind.NUMBER, Kind.NAMES):
        shown = common.BigValueTextMode.NAME if kind is Kind.NAMES else common.BigValueTextMode.AUTO
        return stat.Panel().color_mode(common.BigValueColorMode.VALUE).reduce_options(last).text_mode(shown)
    if kind is Kind.BARS:
        bars = bargauge.Panel().reduce_options(last).orientation(common.VizOrientation.HORIZONTAL)
        return bars.display_mode(common.BarGaugeDisplayMode.BASIC).min(0)
    legend = common_builders.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
    # The line of what is nothing lies on the area below it, in a color that is not that area's: so it is thin there.
    width = 1 if kind is Kind.STACK else 2
    lines = timeseries.Panel().legend(legend.display_mode(common.LegendDisplayMode.LIST)).line_width(width)
    lines.tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)).axis_soft_min(0)
    lines.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.LINE))
    if kind is Kind.STACK:
        lines.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL)).fill_opacity(70)
    return lines


def _thresholds(steps: Sequence[float]) -> grafana.ThresholdsConfig:
    """Colors by value; rising steps go from green to red, falling ones (low is bad) are the same from the other end."""
    is_falling = any(first > second for first, second in pairwise(steps))
    colors = list(_COLORS[:1] + _COLORS[-len(steps) :]) if steps else list(_COLORS[:1])
    if is_falling:
        colors, steps = colors[::-1], steps[::-1]
    found = [model.Threshold(value=value, color=color) for value, color in zip((None, *steps), colors, strict=True)]
    return grafana.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(found)
