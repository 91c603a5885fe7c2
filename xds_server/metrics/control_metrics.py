"""Metrics of proxies, telemetry, the control plane and its process: each is declared here, and nowhere else."""

from typing import Final

from engine.process_metrics import BUILD_INFO_HELP, CONTROL_PLANE
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
"""The Kubernetes resources that a server watches; a test compares them with what it does."""

_BY_TYPE: Final = LabelSet(labels={"type": _TYPES})


class ProxyMetrics(MetricChapter):
    title = "Proxies"

    xds_connections = gauge_family(
        "xds_connections",
        "proxies",
        "Connected proxies.",
        "Fewer than there are: runbook SwitchgearProxiesGone.",
        LabelSet(labels={"role": ROLES, "protocol": tuple(one.value for one in XdsVariant)}),
    )
    xds_streams = gauge_family(
        "xds_streams",
        "subscriptions",
        "Types of connected proxies, by state.",
        "NACK: runbook SwitchgearConfigurationRefused.",
        LabelSet(labels={"type": _TYPES, "state": tuple(one.value for one in SyncState)}),
    )
    xds_behind_seconds = gauge_family(
        "xds_behind_seconds",
        "seconds",
        "Longest time that a connected proxy has been without what it should have, refused or not answered.",
        "Runbook SwitchgearProxiesBehind.",
        _BY_TYPE,
    )
    pushes = counter("xds_pushes_total", "responses", "Responses sent to proxies.", "-", _BY_TYPE)
    push_bytes = counter(
        "xds_push_bytes_total",
        "bytes",
        "Bytes of responses sent to proxies.",
        "A jump in CDS or LDS: an edit that touches everything.",
        _BY_TYPE,
    )
    push_to_ack_seconds = histogram(
        "xds_push_to_ack_seconds",
        "seconds",
        "Time from a response to the proxy's answer to it.",
        "EDS above 0.1 s: proxies short of CPU, or a network that is.",
        _BY_TYPE,
    )
    nacks = counter(
        "xds_nacks_total",
        "responses",
        "Responses that proxies refused.",
        "The log line `xds.nack` names the policy line.",
        _BY_TYPE,
    )
    xds_rolled_back_resources = gauge_family(
        "xds_rolled_back_resources",
        "resources",
        "Resources that proxies are meant to have and are not served, because one refused them.",
        "Runbook SwitchgearConfigurationRolledBack.",
        _BY_TYPE,
    )
    stuck = counter(
        "xds_stuck_total",
        "responses",
        "Responses that a proxy answered neither way for long.",
        "That proxy: CPU, network, or a bug of its own.",
        _BY_TYPE,
    )
    stream_errors = counter(
        "xds_stream_errors_total",
        "streams",
        "Discovery streams ended for what the peer did, by what was wrong with it.",
        "One proxy: its version, or its bootstrap. Many: peers other than proxies; docs/limits.md has each limit.",
        LabelSet(labels={"flaw": tuple(one.value for one in StreamErrorKind)}),
    )
    xds_refused_peers = counter_family(
        "xds_refused_peers_total",
        "streams",
        "Streams of proxies that were refused: identity (named by no rule), node (not this node or zone).",
        "The log line `xds.peer_refused` says who; rules are in the file of --access.",
        LabelSet(labels={"reason": ("identity", "node")}),
    )


class TelemetryMetrics(MetricChapter):
    title = "Telemetry"

    telemetry_age_seconds = gauge_family(
        "telemetry_age_seconds",
        "seconds",
        "Time since a proxy was last heard, by signal.",
        "Runbook SwitchgearTelemetryLost.",
        LabelSet(labels={"node": (), "signal": _SIGNALS}, per=("node",)),
    )
    telemetry_lost = gauge_family(
        "telemetry_lost",
        "proxies",
        "Connected proxies of which a signal is missing.",
        "Runbook SwitchgearTelemetryLost.",
        LabelSet(labels={"signal": _SIGNALS}),
    )
    telemetry_entries = counter(
        "telemetry_entries_total",
        "entries",
        "Entries of access logs that were counted, not divided by the sampling.",
        "-",
    )
    telemetry_load_reports = counter("telemetry_load_reports_total", "reports", "Load reports of proxies.", "-")
    telemetry_dropped = counter(
        "telemetry_dropped_total",
        "entries",
        "Entries that were not counted because there were too many.",
        "Now and then: sampling follows. For long: more replicas.",
        LabelSet(labels={"signal": _SIGNALS}),
    )
    telemetry_errors = counter(
        "telemetry_errors_total",
        "streams and messages",
        "Telemetry of proxies that was refused, by what was wrong with it.",
        "stranger: the sender has no connected xDS stream; else another version.",
        LabelSet(
            labels={
                "signal": _SIGNALS,
                "flaw": ("garbage", "foreign", "nameless", "absurd", "stranger", "crowd", "host", "silent"),
            }
        ),
    )
    telemetry_sampling_ratio = gauge_family(
        "telemetry_sampling_ratio",
        "ratio",
        "Share of calls that proxies are asked to report.",
        "Below 1 counts are coarser, not smaller.",
    )
    telemetry_load_report_interval_seconds = gauge_family(
        "telemetry_load_report_interval_seconds",
        "seconds",
        "How often each proxy is asked to report its load.",
        "Longer with many proxies.",
    )


class ControlPlaneMetrics(MetricChapter):
    title = "The control plane itself"

    snapshot_build_seconds = histogram(
        "snapshot_build_seconds",
        "seconds",
        "Time from policies and reports to snapshots of every view in use.",
        "Above 1 s: too many views (zones x pools x roles), or no CPU.",
    )
    resources = gauge(
        "snapshot_resources",
        "resources",
        "Resources of the view that sees everything.",
        "A drop is what an edit took away.",
        _BY_TYPE,
    )
    report_to_push_seconds = histogram(
        "report_to_push_seconds",
        "seconds",
        "Time from a report that changes a decision to the snapshot that carries it, of any kind of change.",
        "Like hop decide, which counts departures alone.",
    )
    policy_reloads = counter(
        "policy_reloads_total",
        "readings",
        "Readings of changed policies, by result.",
        "refused: runbook SwitchgearPoliciesRefused; failed: a bug.",
        LabelSet(labels={"result": ("accepted", "refused", "held", "failed", "unreached")}),
    )
    policy_refused = gauge(
        "policy_refused",
        "boolean",
        "1 while the policy files are refused.",
        "Runbook SwitchgearPoliciesRefused.",
    )
    shrink_held = gauge(
        "shrink_held",
        "boolean",
        "1 while policies are held back because they drop too much.",
        "Runbook SwitchgearPoliciesHeld.",
    )
    policy_stale = gauge(
        "policy_stale",
        "boolean",
        "1 while policies from the last run are served.",
        "Runbook SwitchgearPoliciesStale.",
    )
    reconcile_failures = counter(
        "reconcile_failures_total",
        "rounds",
        "Rounds that failed from a bug; the last good snapshot stayed in place.",
        "Runbook SwitchgearReconcileFailing.",
    )
    store_failures = counter(
        "store_failures_total",
        "attempts",
        "Failed attempts to write what a restart begins with: each 10 s, while the disk refuses.",
        "Runbook SwitchgearStoreFailing.",
    )
    trace_spans = counter_family(
        "trace_spans_total",
        "spans",
        "Spans of traces, by what became of them: sent, failed (not taken by the collector), dropped (too many).",
        "Runbook SwitchgearTracesLost.",
        LabelSet(labels={"result": ("sent", "failed", "dropped")}),
        where="with --otlp",
    )
    source_stale_seconds = gauge_family(
        "source_stale_seconds",
        "seconds",
        "Time without contact to the Kubernetes API.",
        "Runbook SwitchgearSourceStale.",
        LabelSet(labels={"resource": _WATCHED}),
        where="with --kubernetes",
    )
    lease_held = gauge_family(
        "lease_held",
        "boolean",
        "1 while this replica is the one that writes.",
        "Runbooks SwitchgearLeaseHeldByNobody and SwitchgearLeaseHeldTwice.",
        where="with --kubernetes, without --no-write-status",
    )
    certificate_expiry_seconds = gauge_family(
        "certificate_expiry_seconds",
        "seconds",
        "Time until the certificate of this server ends; negative once it has.",
        "Runbook SwitchgearCertificateExpires.",
        LabelSet(labels={"use": ("server",)}),
        where="with --tls-cert",
    )
    certificate_lifetime_seconds = gauge_family(
        "certificate_lifetime_seconds",
        "seconds",
        "How long the certificate of this server is valid from its first second to its last.",
        "Nothing: the alert asks how much of it is left.",
        LabelSet(labels={"use": ("server",)}),
        where="with --tls-cert",
    )
    certificate_trouble = gauge_family(
        "certificate_trouble",
        "boolean",
        "1 while the certificate files cannot be used and the pair before them is.",
        "Runbook SwitchgearCertificateRefused.",
        where="with --tls-cert",
    )
    secret_expiry_seconds = gauge_family(
        "secret_expiry_seconds",
        "seconds",
        "Time until the first certificate of a secret for engines ends that has to hold; negative once it has.",
        "Runbook SwitchgearSecretExpires.",
        LabelSet(labels={"secret": ()}, per=("secret",)),
        where="with --secrets",
    )
    secret_lifetime_seconds = gauge_family(
        "secret_lifetime_seconds",
        "seconds",
        "How long that certificate of a secret is valid from its first second to its last.",
        "Nothing: the alert asks how much of it is left.",
        LabelSet(labels={"secret": ()}, per=("secret",)),
        where="with --secrets",
    )
    secret_trouble = gauge_family(
        "secret_trouble",
        "boolean",
        "1 while the files of a secret cannot be used, and those before them are, if there were any.",
        "Runbook SwitchgearSecretRefused.",
        LabelSet(labels={"secret": ()}, per=("secret",)),
        where="with --secrets",
    )
    secrets_withheld = gauge_family(
        "secrets_withheld",
        "keys",
        "Private keys that connected proxies need and are not sent: plaintext, nameless (their certificate proves "
        "no name), grpc (a gRPC client).",
        "Runbook SwitchgearSecretsWithheld. grpc: give the client credentials of its own for these engines.",
        LabelSet(labels={"reason": ("plaintext", "nameless", "grpc")}),
    )
    access_refused = gauge_family(
        "access_refused",
        "boolean",
        "1 while the rules of access cannot be read and those before them are in force.",
        "Runbook SwitchgearAccessRefused.",
        where="with --access",
    )
    admin_refused = counter_family(
        "admin_refused_total",
        "requests",
        "Requests to the admin port that were turned away: unknown (no proof), role (reads only), rate, host, "
        "crowd (a connection too many).",
        "unknown rising: an old token, or an attempt to break in. host: a web page tries to read. crowd: the "
        "log names the host that has too many.",
        LabelSet(labels={"reason": ("unknown", "role", "rate", "host", "crowd")}),
    )


class ProcessMetrics(MetricChapter):
    title = "Its process"

    build_info = process_metric(
        "switchgear_build_info",
        "boolean",
        BUILD_INFO_HELP,
        "Two versions for long: a rollout that stopped half way.",
        LabelSet(labels={"component": (CONTROL_PLANE,), "version": ()}, per=("version",)),
    )
    cpu_seconds = process_metric(
        "process_cpu_seconds_total",
        "seconds",
        "Time of a CPU that the process has used.",
        "Its rate above 0.8: docs/benchmarks.md says what engines and proxies cost.",
    )
    resident_memory_bytes = process_metric(
        "process_resident_memory_bytes",
        "bytes",
        "Memory that the process holds.",
        "Rising for days beyond what docs/limits.md says it grows by: a bug.",
    )
    virtual_memory_bytes = process_metric(
        "process_virtual_memory_bytes", "bytes", "Address space of the process.", "Nothing."
    )
    start_time_seconds = process_metric(
        "process_start_time_seconds",
        "seconds",
        "When the process started, since the epoch.",
        "A change is a restart: the log before it says why.",
    )
    open_fds = process_metric(
        "process_open_fds",
        "descriptors",
        "Open descriptors; each proxy and each agent is one or more.",
        "Near `process_max_fds`: raise the limit (SG233).",
    )
    max_fds = process_metric(
        "process_max_fds", "descriptors", "Descriptors that the process may have.", "As above."
    )
