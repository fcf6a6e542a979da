"""Who sends, what is taken, what is refused, and whether the disk can hold it."""

from __future__ import annotations

from deploy.dashboards.panels import BYTES, BYTES_PER_SECOND, COUNT, DAYS, PER_SECOND, SECONDS, Dashboard, Kind, Panel

_ASSOCIATIONS = (
    Panel(
        title="Associations accepted",
        description="Associations accepted per second.",
        queries={"{{instance}}": 'rate(cxr_associations_accepted_total{instance=~"$instance"}[$__rate_interval])'},
        unit=PER_SECOND,
        width=8,
    ),
    Panel(
        title="Associations open",
        description="Associations that are open now; at listener.max_associations the next is refused.",
        queries={"{{instance}}": 'cxr_associations_open{instance=~"$instance"}'},
        unit=COUNT,
        width=8,
    ),
    Panel(
        title="Associations refused",
        description="Refused per hour: caller (AE title or address is not among the callers), called_ae (another AE "
        "title was called), tls (no certificate, or a wrong one), disk (below its reserve), limit (too many at once), "
        "protocol and silent (what came is no association).",
        queries={"{{reason}}": 'sum by (reason) (increase(cxr_associations_refused_total{instance=~"$instance"}[1h]))'},
        unit=COUNT,
        kind=Kind.STACK,
        width=8,
    ),
    Panel(
        title="Associations ended by the node",
        description="Per hour: idle or stalled (nothing came, or too slowly), length and protocol (what came was too "
        "much, or wrong).",
        queries={"{{reason}}": 'sum by (reason) (increase(cxr_associations_aborted_total{instance=~"$instance"}[1h]))'},
        unit=COUNT,
        kind=Kind.STACK,
        width=8,
    ),
    Panel(
        title="HTTP connections closed by the node",
        description="Per hour: silent (no complete header within 5 s), stalled (the client reads no answer), host and "
        "limit (for a new connection), descriptors (the process may open no more files).",
        queries={
            "{{reason}}": 'sum by (reason) (increase(cxr_http_connections_closed_total{instance=~"$instance"}[1h]))'
        },
        unit=COUNT,
        kind=Kind.STACK,
        width=8,
    ),
    Panel(
        title="Certificates",
        description="Days until a certificate of the node expires, by the port or destination it is shown to. Below "
        "30: runbook, CxrCertificateToBeRenewed; below 7: CxrCertificateExpiring.",
        queries={"{{name}}": 'min by (name) (cxr_certificate_days{instance=~"$instance"})'},
        unit=DAYS,
        width=8,
        steps=(30, 7),
        empty="no TLS",
    ),
)

_OBJECTS = (
    Panel(
        title="Objects",
        description="Objects per second: kept, repeated (the same bytes came before), conflict (other pixels under a "
        "known UID, kept beside it: runbook, CxrConflict), refused.",
        queries={
            "{{outcome}}": 'sum by (outcome) (rate(cxr_instances_total{instance=~"$instance"}[$__rate_interval]))'
        },
        unit=PER_SECOND,
        kind=Kind.STACK,
    ),
    Panel(
        title="Bytes",
        description="Bytes of acknowledged objects per second.",
        queries={"{{instance}}": 'rate(cxr_received_bytes_total{instance=~"$instance"}[$__rate_interval])'},
        unit=BYTES_PER_SECOND,
    ),
    Panel(
        title="Objects refused, by reason",
        description="Refused per hour: cannot_understand (no valid UIDs), out_of_resources (disk), processing_failure "
        "(a fault of the node).",
        queries={
            "{{reason}}": 'sum by (reason) (increase(cxr_failures_total{instance=~"$instance",stage="receive"}[1h]))'
        },
        unit=COUNT,
        kind=Kind.STACK,
    ),
    Panel(
        title="Time to acknowledge",
        description="From the whole object in memory to synced on disk, before Success is answered: the speed of the "
        "disk.",
        queries={
            "half": "histogram_quantile(0.5, sum by (le) "
            '(rate(cxr_step_duration_seconds_bucket{instance=~"$instance",step="receive"}[$__range])))',
            "95 of 100": "histogram_quantile(0.95, sum by (le) "
            '(rate(cxr_step_duration_seconds_bucket{instance=~"$instance",step="receive"}[$__range])))',
        },
        unit=SECONDS,
    ),
)

_OUT = (
    Panel(
        title="Sent",
        description="Outputs that a destination took, per second.",
        queries={
            "{{destination}}": "sum by (destination) "
            '(rate(cxr_deliveries_total{instance=~"$instance",outcome="sent"}[$__rate_interval]))'
        },
        unit=PER_SECOND,
    ),
    Panel(
        title="Delivery failures",
        description="Per hour: down (no connection), busy (not now), rejected (never), expired (given up), removed "
        "(not in the settings any more).",
        queries={
            "{{reason}}": 'sum by (reason) (increase(cxr_failures_total{instance=~"$instance",stage="deliver"}[1h]))'
        },
        unit=COUNT,
        kind=Kind.STACK,
    ),
)

_ORDERS = (
    Panel(
        title="Orders and corrections of the archive",
        description="Orders kept and cancelled, messages refused, films rejected by the archive, updates of patients "
        "(ADT), results whose order is not for their patient, rounds of studies with films of several patients or "
        "accession numbers, per hour. Runbook: Wrong patients.",
        queries={
            "{{outcome}}": 'sum by (outcome) (increase(cxr_orders_total{instance=~"$instance"}[1h]))',
            "films rejected: {{reason}}": (
                'sum by (reason) (increase(cxr_films_rejected_total{instance=~"$instance"}[1h]))'
            ),
            "patients: {{outcome}}": (
                'sum by (outcome) (increase(cxr_patient_updates_total{instance=~"$instance"}[1h]))'
            ),
            "orders unmatched": 'sum(increase(cxr_orders_unmatched_total{instance=~"$instance"}[1h]))',
            "studies divided": 'sum(increase(cxr_studies_divided_total{instance=~"$instance"}[1h]))',
        },
        unit=COUNT,
        kind=Kind.STACK,
        width=8,
    ),
    Panel(
        title="Orders refused, by reason",
        description="Connections and messages per hour: caller, tls, silent (ended to make room), connection (broken "
        "or too slow), useless (ten bad messages in a row), content (no order for us), not_kept (disk). Runbook: "
        "CxrOrdersRefused.",
        queries={"{{reason}}": 'sum by (reason) (increase(cxr_orders_refused_total{instance=~"$instance"}[1h]))'},
        unit=COUNT,
        kind=Kind.STACK,
        width=8,
    ),
    Panel(
        title="Connections for orders",
        description="Connections that are open now; the twenty-first ends the one that was silent longest.",
        queries={"{{instance}}": 'cxr_order_connections_open{instance=~"$instance"}'},
        unit=COUNT,
        width=8,
    ),
)

_AUDIT = (
    Panel(
        title="Audit messages that wait",
        description="Messages on disk that the collector has not taken: runbook, CxrAuditWaiting.",
        queries={"{{service}}": 'max by (namespace, service) (cxr_audit_waiting{instance=~"$instance"})'},
        unit=COUNT,
    ),
    Panel(
        title="Audit messages lost",
        description="Per hour, by the place that did not take them: the file, or the folder of what waits for the "
        "collector. Runbook: CxrAuditLost.",
        queries={"{{sink}}": 'sum by (sink) (increase(cxr_audit_lost_total{instance=~"$instance"}[1h]))'},
        unit=COUNT,
        kind=Kind.STACK,
    ),
)

_DISK = (
    Panel(
        title="Disk",
        description="Free space, and the reserve below which nothing is accepted: runbook, CxrDiskAlmostFull.",
        queries={
            "{{service}} free": 'min by (namespace, service) (cxr_spool_free_bytes{instance=~"$instance"})',
            "{{service}} reserve": 'max by (namespace, service) (cxr_spool_reserve_bytes{instance=~"$instance"})',
        },
        unit=BYTES,
        width=24,
    ),
)

DASHBOARD = Dashboard(
    name="chex-network",
    title="ChEX Node: DICOM network",
    description="Who sends, what is taken, what is refused.",
    rows={
        "Associations": _ASSOCIATIONS,
        "Objects": _OBJECTS,
        "Results": _OUT,
        "Orders": _ORDERS,
        "Audit trail": _AUDIT,
        "Disk": _DISK,
    },
)
