"""Declarations of the proxy, telemetry, control-plane and process metrics."""

from typing import Final

from engine.process_metrics import BUILD_INFO_HELP, CONTROL_PLANE
from policies.codes import REMARKS
from xds_server.admin_api.status_types import SyncState
from xds_server.metrics.metric_spec import (
    LabelSet,
    MetricChapter,
    counter,
    counter_family,
    gauge,
    gauge_family,
    histogram,
    process_metric,
)
from xds_server.model.pool_traffic import TelemetrySignal
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.model.view import ROLES
from xds_server.xds import StreamErrorKind, XdsVariant

_TYPES: Final = (*SHORT_NAMES.values(), "other")
_SIGNALS: Final = tuple(one.value for one in TelemetrySignal)
_WATCHED: Final = ("enginepools", "modelroutes", "resiliencepolicies", "endpointslices", "pods", "nodes")
"""Kubernetes resources that a server watches; a test compares them with its reflectors."""

_BY_TYPE: Final = LabelSet(labels={"type": _TYPES})


_CONDITIONS: Final = LabelSet(
    labels={
        "code": tuple(one.code for one in REMARKS.values() if one.severity),
        "severity": ("info", "warning", "critical"),
    },
    given=("severity",),
)
"""A code has one severity, so each code is one series. Objects have no label: proxies and peers are unbounded."""


class ProxyMetrics(MetricChapter):
    title = "Proxies"

    xds_connections = gauge_family(
        "xds_connections",
        "proxies",
        "Connected proxies.",
        "Fewer than expected: runbook SwitchgearProxiesGone.",
        LabelSet(labels={"role": ROLES, "protocol": tuple(one.value for one in XdsVariant)}),
    )
    xds_streams = gauge_family(
        "xds_streams",
        "subscriptions",
        "Subscriptions of connected proxies, by resource type and sync state.",
        "NACK: runbook SwitchgearConfigurationRefused.",
        LabelSet(labels={"type": _TYPES, "state": tuple(one.value for one in SyncState)}),
    )
    xds_behind_seconds = gauge_family(
        "xds_behind_seconds",
        "seconds",
        "Longest time any connected proxy has lacked its current resources (refused or not acknowledged).",
        "Runbook SwitchgearProxiesBehind.",
        _BY_TYPE,
    )
    pushes = counter("xds_pushes_total", "responses", "Responses sent to proxies.", "-", _BY_TYPE)
    push_bytes = counter(
        "xds_push_bytes_total",
        "bytes",
        "Bytes of responses sent to proxies.",
        "A jump in CDS or LDS: an edit that changes every resource.",
        _BY_TYPE,
    )
    push_to_ack_seconds = histogram(
        "xds_push_to_ack_seconds",
        "seconds",
        "Time from a response to its ACK or NACK.",
        "EDS above 0.1 s: slow network, or proxies short of CPU.",
        _BY_TYPE,
    )
    nacks = counter(
        "xds_nacks_total",
        "responses",
        "Responses refused by proxies (NACK).",
        "The log line `xds.nack` names the policy line.",
        _BY_TYPE,
    )
    xds_rolled_back_resources = gauge_family(
        "xds_rolled_back_resources",
        "resources",
        "Resources that connected proxies lack in their current version because proxies refused it.",
        "Runbook SwitchgearConfigurationRolledBack.",
        _BY_TYPE,
    )
    stuck = counter(
        "xds_stuck_total",
        "responses",
        "Responses without ACK or NACK for too long.",
        "Check that proxy's CPU, network and Envoy version.",
        _BY_TYPE,
    )
    stream_errors = counter(
        "xds_stream_errors_total",
        "streams",
        "Discovery streams closed because of a peer error, by error.",
        "One proxy: check its version and bootstrap. Many: peers that are not proxies; limits are in "
        "docs/limits.md.",
        LabelSet(labels={"flaw": tuple(one.value for one in StreamErrorKind)}),
    )
    peer_waits = counter(
        "peer_waits_total",
        "waits",
        "Waits before the next message of a proxy that has used up its CPU time, by stream.",
        "Sustained: the log line peers.paced names the proxy and its host.",
        LabelSet(labels={"signal": ("discovery", "access_log", "load_report")}),
    )
    streams_shed = counter(
        "streams_shed_total",
        "streams",
        "Streams of proxies ended because memory was short, or with a connection reset for unfinished messages.",
        "Log line peers.unfinished: it names the host. Log line peers.memory_short: raise the memory limit.",
    )
    log_lines_suppressed = counter(
        "log_lines_suppressed_total",
        "lines",
        "Log lines of proxies' events (connects, disconnects, refusals) beyond what a proxy or host may cause.",
        "Log line peers.lines_suppressed: it names the host.",
    )
    xds_refused_peers = counter_family(
        "xds_refused_peers_total",
        "streams",
        "Proxy streams refused: identity (no rule matches), node (not the proxy's own node or zone).",
        "The log line `xds.peer_refused` names the peer; rules are in the --access file.",
        LabelSet(labels={"reason": ("identity", "node")}),
    )


class TelemetryMetrics(MetricChapter):
    title = "Telemetry"

    telemetry_age_seconds = gauge_family(
        "telemetry_age_seconds",
        "seconds",
        "Time since the last telemetry from a proxy, by signal.",
        "Runbook SwitchgearTelemetryLost.",
        LabelSet(labels={"node": (), "signal": _SIGNALS}, per=("node",)),
    )
    telemetry_lost = gauge_family(
        "telemetry_lost",
        "proxies",
        "Connected proxies that do not send a signal.",
        "Runbook SwitchgearTelemetryLost.",
        LabelSet(labels={"signal": _SIGNALS}),
    )
    telemetry_entries = counter(
        "telemetry_entries_total",
        "entries",
        "Access log entries counted, before scaling by the sampling ratio.",
        "-",
    )
    telemetry_load_reports = counter(
        "telemetry_load_reports_total", "reports", "Load reports received from proxies.", "-"
    )
    telemetry_dropped = counter(
        "telemetry_dropped_total",
        "entries",
        "Entries of proxies that exceed their part of the budget.",
        "Occasional: sampling adapts. Sustained: the log line telemetry.over_budget names the proxy.",
        LabelSet(labels={"signal": _SIGNALS}),
    )
    telemetry_errors = counter(
        "telemetry_errors_total",
        "streams and messages",
        "Rejected telemetry from proxies, by error.",
        "stranger: the sender has no connected xDS stream; others: version mismatch.",
        LabelSet(
            labels={
                "signal": _SIGNALS,
                "flaw": (
                    "garbage",
                    "foreign",
                    "nameless",
                    "absurd",
                    "stranger",
                    "crowd",
                    "host",
                    "silent",
                    "size",
                    "protocol",
                    "memory",
                    "stalled",
                ),
            }
        ),
    )
    telemetry_sampling_ratio = gauge_family(
        "telemetry_sampling_ratio",
        "ratio",
        "Lowest share of calls that any proxy reports (sampling ratio).",
        "Below 1, counts stay unbiased but are less precise.",
    )
    telemetry_load_report_interval_seconds = gauge_family(
        "telemetry_load_report_interval_seconds",
        "seconds",
        "Load report interval requested from each proxy.",
        "Grows with the number of proxies.",
    )


class ControlPlaneMetrics(MetricChapter):
    title = "Control plane"

    condition = gauge_family(
        "condition",
        "objects",
        "Objects in a condition, by its code; 0 while there is none. `switchgear status` names them.",
        "Each code has its meaning, fix and runbook in docs/codes.md.",
        _CONDITIONS,
    )
    snapshot_build_seconds = histogram(
        "snapshot_build_seconds",
        "seconds",
        "Time from policies and reports to new snapshots of all views in use.",
        "Above 1 s: too many views (zones x pools x roles), or too little CPU.",
    )
    resources = gauge(
        "snapshot_resources",
        "resources",
        "Resources in the view without visibility limits.",
        "A drop: resources removed by an edit.",
        _BY_TYPE,
    )
    report_to_push_seconds = histogram(
        "report_to_push_seconds",
        "seconds",
        "Time from a report that changes a decision to the snapshot that carries the change.",
        "Like hop `decide`, which covers ejections only.",
    )
    policy_reloads = counter(
        "policy_reloads_total",
        "readings",
        "Reads of changed policies, by result.",
        "refused: runbook SwitchgearPoliciesRefused; failed: a bug.",
        LabelSet(labels={"result": ("accepted", "refused", "held", "failed", "unreached")}),
    )
    policy_refused = gauge(
        "policy_refused",
        "boolean",
        "1 while the policy files are refused; otherwise 0.",
        "Runbook SwitchgearPoliciesRefused.",
    )
    shrink_held = gauge(
        "shrink_held",
        "boolean",
        "1 while new policies are held because they remove too much; otherwise 0.",
        "Runbook SwitchgearPoliciesHeld.",
    )
    policy_stale = gauge(
        "policy_stale",
        "boolean",
        "1 while policies from the previous run are served; otherwise 0.",
        "Runbook SwitchgearPoliciesStale.",
    )
    reconcile_failures = counter(
        "reconcile_failures_total",
        "rounds",
        "Reconcile rounds that failed because of a bug; the last good snapshot stays in force.",
        "Runbook SwitchgearReconcileFailing.",
    )
    store_failures = counter(
        "store_failures_total",
        "attempts",
        "Failed attempts to persist state to disk; one every 10 s while the disk fails.",
        "Runbook SwitchgearStoreFailing.",
    )
    trace_spans = counter_family(
        "trace_spans_total",
        "spans",
        "Trace spans by outcome: sent, failed (refused by the collector), dropped (queue full).",
        "Runbook SwitchgearTracesLost.",
        LabelSet(labels={"result": ("sent", "failed", "dropped")}),
        where="with --otlp",
    )
    source_stale_seconds = gauge_family(
        "source_stale_seconds",
        "seconds",
        "Time since the last contact with the Kubernetes API.",
        "Runbook SwitchgearSourceStale.",
        LabelSet(labels={"resource": _WATCHED}),
        where="with --kubernetes",
    )
    lease_held = gauge_family(
        "lease_held",
        "boolean",
        "1 while this replica is the leader; otherwise 0.",
        "Runbooks SwitchgearLeaseHeldByNobody and SwitchgearLeaseHeldTwice.",
        where="with --kubernetes, without --no-write-status",
    )
    certificate_expiry_seconds = gauge_family(
        "certificate_expiry_seconds",
        "seconds",
        "Time until the server certificate expires; negative once expired.",
        "Runbook SwitchgearCertificateExpires.",
        LabelSet(labels={"use": ("server",)}),
        where="with --tls-cert",
    )
    certificate_lifetime_seconds = gauge_family(
        "certificate_lifetime_seconds",
        "seconds",
        "Validity period of the server certificate.",
        "None; the expiry alert uses it.",
        LabelSet(labels={"use": ("server",)}),
        where="with --tls-cert",
    )
    certificate_trouble = gauge_family(
        "certificate_trouble",
        "boolean",
        "1 while the certificate files are unusable and the previous pair stays in force.",
        "Runbook SwitchgearCertificateRefused.",
        where="with --tls-cert",
    )
    secret_expiry_seconds = gauge_family(
        "secret_expiry_seconds",
        "seconds",
        "Time until the first certificate of an engine secret expires; negative once expired.",
        "Runbook SwitchgearSecretExpires.",
        LabelSet(labels={"secret": ()}, per=("secret",)),
        where="with --secrets",
    )
    secret_lifetime_seconds = gauge_family(
        "secret_lifetime_seconds",
        "seconds",
        "Validity period of that certificate.",
        "None; the expiry alert uses it.",
        LabelSet(labels={"secret": ()}, per=("secret",)),
        where="with --secrets",
    )
    secret_trouble = gauge_family(
        "secret_trouble",
        "boolean",
        "1 while the files of a secret are unusable; the previous ones, if any, stay in force.",
        "Runbook SwitchgearSecretRefused.",
        LabelSet(labels={"secret": ()}, per=("secret",)),
        where="with --secrets",
    )
    secrets_withheld = gauge_family(
        "secrets_withheld",
        "keys",
        "Private keys withheld from connected proxies: plaintext (no TLS), nameless (certificate "
        "without a name), grpc (a gRPC client).",
        "Runbook SwitchgearSecretsWithheld. grpc: configure client credentials for these engines.",
        LabelSet(labels={"reason": ("plaintext", "nameless", "grpc")}),
    )
    access_refused = gauge_family(
        "access_refused",
        "boolean",
        "1 while the access rules are unreadable and the previous ones stay in force.",
        "Runbook SwitchgearAccessRefused.",
        where="with --access",
    )
    admin_refused = counter_family(
        "admin_refused_total",
        "requests",
        "Refused admin requests: unknown (not authenticated), role (read-only), rate, host, crowd "
        "(too many connections).",
        "unknown rising: an expired token, or an intrusion attempt. host: a web page tries to read. "
        "crowd: the log names the host.",
        LabelSet(labels={"reason": ("unknown", "role", "rate", "host", "crowd")}),
    )


class ProcessMetrics(MetricChapter):
    title = "Process"

    build_info = process_metric(
        "switchgear_build_info",
        "boolean",
        BUILD_INFO_HELP,
        "Two versions for long: an incomplete rollout.",
        LabelSet(labels={"component": (CONTROL_PLANE,), "version": ()}, per=("version",)),
    )
    cpu_seconds = process_metric(
        "process_cpu_seconds_total",
        "seconds",
        "CPU time used by the process.",
        "Rate above 0.8: docs/benchmarks.md gives the cost per engine and proxy.",
    )
    resident_memory_bytes = process_metric(
        "process_resident_memory_bytes",
        "bytes",
        "Resident memory of the process.",
        "Growth over days beyond the figures in docs/limits.md: a bug.",
    )
    virtual_memory_bytes = process_metric(
        "process_virtual_memory_bytes", "bytes", "Virtual memory of the process.", "Nothing."
    )
    start_time_seconds = process_metric(
        "process_start_time_seconds",
        "seconds",
        "Start time of the process, in seconds since the epoch.",
        "A change is a restart; the log before it gives the cause.",
    )
    open_fds = process_metric(
        "process_open_fds",
        "descriptors",
        "Open file descriptors; each proxy and agent uses at least one.",
        "Near `process_max_fds`: raise the limit (SG233).",
    )
    max_fds = process_metric(
        "process_max_fds", "descriptors", "Limit of open file descriptors.", "Raise the limit (SG233)."
    )
