"""Metrics of proxies, of telemetry and of the control plane itself."""

from typing import Final

from xds_server.k8s.api_resources import ENDPOINT_SLICES, NODES, PODS, POLICY_RESOURCES
from xds_server.metric_reference.metric_spec import BY_TYPE, SIGNALS, TYPES, metric_spec
from xds_server.model.status_types import SyncState
from xds_server.model.view import ROLES
from xds_server.xds import StreamErrorKind, XdsVariant

READ: Final = tuple(one.plural for one in (*POLICY_RESOURCES.values(), ENDPOINT_SLICES, PODS, NODES))
"""What is read from a cluster."""

PROXIES: Final = (
    metric_spec(
        "xds_connections", "gauge", "proxies", "Connected proxies.",
        "Fewer than there are: runbook SwitchgearProxiesGone.",
        labels={"role": ROLES, "protocol": tuple(one.value for one in XdsVariant)},
    ),
    metric_spec(
        "xds_streams", "gauge", "subscriptions", "Types of connected proxies, by state.",
        "NACK: runbook SwitchgearConfigurationRefused.",
        labels={"type": TYPES, "state": tuple(one.value for one in SyncState)},
    ),
    metric_spec(
        "xds_behind_seconds", "gauge", "seconds",
        "Longest time that a connected proxy has been without what it should have, refused or not answered.",
        "Runbook SwitchgearProxiesBehind.", BY_TYPE,
    ),
    metric_spec("xds_pushes_total", "counter", "responses", "Responses sent to proxies.", "-", BY_TYPE),
    metric_spec(
        "xds_push_bytes_total", "counter", "bytes", "Bytes of responses sent to proxies.",
        "A jump in CDS or LDS: an edit that touches everything.", BY_TYPE,
    ),
    metric_spec(
        "xds_push_to_ack_seconds", "histogram", "seconds", "Time from a response to the proxy's answer to it.",
        "EDS above 0.1 s: proxies short of CPU, or a network that is.", BY_TYPE,
    ),
    metric_spec(
        "xds_nacks_total", "counter", "responses", "Responses that proxies refused.",
        "The log line `xds.nack` names the policy line.", BY_TYPE,
    ),
    metric_spec(
        "xds_rolled_back_resources", "gauge", "resources",
        "Resources that proxies are meant to have and are not served, because one refused them.",
        "Runbook SwitchgearConfigurationRolledBack.", BY_TYPE,
    ),
    metric_spec(
        "xds_stuck_total", "counter", "responses", "Responses that a proxy answered neither way for long.",
        "That proxy: CPU, network, or a bug of its own.", BY_TYPE,
    ),
    metric_spec(
        "xds_stream_errors_total", "counter", "streams",
        "Discovery streams ended for what the peer did, by what was wrong with it.",
        "One proxy: its version, or its bootstrap. Many: somebody who is none; docs/limits.md has each limit.",
        labels={"flaw": tuple(one.value for one in StreamErrorKind)},
    ),
    metric_spec(
        "xds_refused_peers_total", "counter", "streams",
        "Streams of proxies that were refused: identity (named by no rule), node (not this node or zone).",
        "The log line `xds.peer_refused` says who; rules are in the file of --access.",
        labels={"reason": ("identity", "node")},
    ),
)  # fmt: skip

TELEMETRY: Final = (
    metric_spec(
        "telemetry_age_seconds", "gauge", "seconds", "Time since a proxy was last heard, by signal.",
        "Runbook SwitchgearTelemetryLost.", labels={"node": (), "signal": SIGNALS}, per=("node",),
    ),
    metric_spec(
        "telemetry_lost", "gauge", "proxies", "Connected proxies of which a signal is missing.",
        "Runbook SwitchgearTelemetryLost.", labels={"signal": SIGNALS},
    ),
    metric_spec(
        "telemetry_entries_total", "counter", "entries",
        "Entries of access logs that were counted, as they came.", "-",
    ),
    metric_spec("telemetry_load_reports_total", "counter", "reports", "Load reports of proxies.", "-"),
    metric_spec(
        "telemetry_dropped_total", "counter", "entries",
        "Entries that were not counted because there were too many.",
        "Now and then: sampling follows. For long: more replicas.", labels={"signal": SIGNALS},
    ),
    metric_spec(
        "telemetry_errors_total", "counter", "streams and messages",
        "What was not believed of proxies' telemetry, by what was wrong with it.",
        "stranger: somebody tells who is not connected; else another version.",
        labels={
            "signal": SIGNALS,
            "flaw": ("garbage", "foreign", "nameless", "absurd", "stranger", "crowd", "host", "silent"),
        },
    ),
    metric_spec(
        "telemetry_sampling_ratio", "gauge", "ratio", "Share of calls that proxies are asked to report.",
        "Below 1 counts are coarser, not smaller.",
    ),
    metric_spec(
        "telemetry_load_report_interval_seconds", "gauge", "seconds",
        "How often each proxy is asked to report its load.", "Longer with many proxies.",
    ),
)  # fmt: skip

CONTROL: Final = (
    metric_spec(
        "snapshot_build_seconds", "histogram", "seconds",
        "Time from policies and reports to snapshots of every view in use.",
        "Above 1 s: too many views (zones x pools x roles), or no CPU.",
    ),
    metric_spec(
        "snapshot_resources", "gauge", "resources", "Resources of the view that sees everything.",
        "A drop is what an edit took away.", BY_TYPE,
    ),
    metric_spec(
        "report_to_push_seconds", "histogram", "seconds",
        "Time from a report that changes a decision to the snapshot that carries it, of any kind of change.",
        "Like hop decide, which counts departures alone.",
    ),
    metric_spec(
        "policy_reloads_total", "counter", "readings", "Readings of changed policies, by result.",
        "refused: runbook SwitchgearPoliciesRefused; failed: a bug.",
        labels={"result": ("accepted", "refused", "held", "failed", "unreached")},
    ),
    metric_spec(
        "policy_refused", "gauge", "boolean", "1 while the policy files are refused.",
        "Runbook SwitchgearPoliciesRefused.",
    ),
    metric_spec(
        "shrink_held", "gauge", "boolean", "1 while policies are held back because they drop too much.",
        "Runbook SwitchgearPoliciesHeld.",
    ),
    metric_spec(
        "policy_stale", "gauge", "boolean", "1 while policies from the last run are served.",
        "Runbook SwitchgearPoliciesStale.",
    ),
    metric_spec(
        "reconcile_failures_total", "counter", "rounds",
        "Rounds that failed from a bug; the last good snapshot stayed in place.",
        "Runbook SwitchgearReconcileFailing.",
    ),
    metric_spec(
        "store_failures_total", "counter", "attempts",
        "Failed attempts to write what a restart begins with: each 10 s, while the disk refuses.",
        "Runbook SwitchgearStoreFailing.",
    ),
    metric_spec(
        "trace_spans_total", "counter", "spans",
        "Spans of traces, by what became of them: sent, failed (not taken by the collector), dropped (too many).",
        "Runbook SwitchgearTracesLost.",
        labels={"result": ("sent", "failed", "dropped")}, where="with --otlp",
    ),
    metric_spec(
        "source_stale_seconds", "gauge", "seconds", "Time without contact to the Kubernetes API.",
        "Runbook SwitchgearSourceStale.", labels={"resource": READ}, where="with --kubernetes",
    ),
    metric_spec(
        "lease_held", "gauge", "boolean", "1 while this replica is the one that writes.",
        "Runbooks SwitchgearLeaseHeldByNobody and SwitchgearLeaseHeldTwice.",
        where="with --kubernetes, without --no-write-status",
    ),
    metric_spec(
        "certificate_expiry_seconds", "gauge", "seconds",
        "Time until the certificate ends; negative once it has.", "Runbook SwitchgearCertificateExpires.",
        labels={"use": ("server",)}, where="with --tls-cert",
    ),
    metric_spec(
        "certificate_lifetime_seconds", "gauge", "seconds",
        "How long the certificate is valid from its first second to its last.",
        "Nothing: the alert asks how much of it is left.", labels={"use": ("server",)}, where="with --tls-cert",
    ),
    metric_spec(
        "certificate_trouble", "gauge", "boolean",
        "1 while the certificate files cannot be used and the pair before them is.",
        "Runbook SwitchgearCertificateRefused.", where="with --tls-cert",
    ),
    metric_spec(
        "secret_expiry_seconds", "gauge", "seconds",
        "Time until the first certificate of a secret for engines ends that has to hold; negative once it has.",
        "Runbook SwitchgearSecretExpires.", labels={"secret": ()}, per=("secret",), where="with --secrets",
    ),
    metric_spec(
        "secret_lifetime_seconds", "gauge", "seconds",
        "How long that certificate of a secret is valid from its first second to its last.",
        "Nothing: the alert asks how much of it is left.",
        labels={"secret": ()}, per=("secret",), where="with --secrets",
    ),
    metric_spec(
        "secret_trouble", "gauge", "boolean",
        "1 while the files of a secret cannot be used, and those before them are, if there were any.",
        "Runbook SwitchgearSecretRefused.",
        labels={"secret": ()}, per=("secret",), where="with --secrets",
    ),
    metric_spec(
        "secrets_withheld", "gauge", "keys",
        "Private keys that connected proxies need and are not sent: plaintext, nameless (their certificate proves "
        "no name), grpc (a gRPC client).",
        "Runbook SwitchgearSecretsWithheld. grpc: give the client credentials of its own for these engines.",
        labels={"reason": ("plaintext", "nameless", "grpc")},
    ),
    metric_spec(
        "access_refused", "gauge", "boolean",
        "1 while the rules of access cannot be read and those before them are in force.",
        "Runbook SwitchgearAccessRefused.", where="with --access",
    ),
    metric_spec(
        "admin_refused_total", "counter", "requests",
        "Requests to the admin port that were turned away: unknown (no proof), role (reads only), rate, host, "
        "crowd (a connection too many).",
        "unknown rising: a token that is old, or somebody who tries. host: a web page tries to read. crowd: the "
        "log names the host that has too many.",
        labels={"reason": ("unknown", "role", "rate", "host", "crowd")},
    ),
)  # fmt: skip
