"""Codes of remarks on a running server, shown by ``switchgear status``, ``why``, ``doctor`` and ``config-dump``."""

# ruff: noqa: E501 - a table of prose

from typing import Final

from policies.codes.code import Code

_SERVING: Final = (
    Code(
        code="SG200",
        title="policies refused",
        meaning="The policy files have errors. The last accepted policies stay in force.",
        situation="a typing error in a file of a running server",
        fix="Fix the named problem; `switchgear validate` finds it before a rollout.",
    ),
    Code(
        code="SG201",
        title="policies held back",
        meaning="The policies are valid, but would remove so much at once that it may be a mistake.",
        situation="a folder that lost half of its files",
        fix="Correct the files, or publish them with `switchgear release` or `serve --allow-shrink`.",
    ),
    Code(
        code="SG202",
        title="policy source unreachable",
        meaning="The Kubernetes API does not answer. The last known policies stay in force.",
        situation="an API server during an upgrade",
        fix="Restore the API; Switchgear needs no action. Without `--state-dir` a restart would wait for it.",
    ),
    Code(
        code="SG203",
        title="policies of the last run",
        meaning="The server could not read policies since its start, and serves those in `--state-dir`.",
        situation="a folder that is not mounted",
        fix="Make the policies readable.",
    ),
    Code(
        code="SG204",
        title="resource refused by a proxy",
        meaning="A proxy refused a resource (NACK). It keeps the previous one; the same content is not sent again.",
        situation="an Envoy too old for a field that it receives",
        fix="Read the named policy line and Envoy's message.",
    ),
    Code(
        code="SG205",
        title="proxy behind",
        meaning="A proxy has not acknowledged an update for more than 30 seconds.",
        situation="an Envoy that is stopped, or waits for a cluster to warm",
        fix="Inspect the proxy: `switchgear config-dump PROXY --diff`, its log, its CPU.",
    ),
    Code(
        code="SG206",
        title="no proxy connected",
        meaning="No proxy is connected. Envoys that were connected keep their configuration.",
        situation="a firewall between the Envoys and the xDS port",
        fix="Check the address in their bootstrap, certificates and network policies.",
    ),
    Code(
        code="SG207",
        title="server not ready",
        meaning="The xDS port is closed: the server has nothing to serve yet.",
        situation="a server whose first policies are refused",
        fix="Fix the named reason.",
    ),
    Code(
        code="SG208",
        title="engine ejected",
        meaning="An engine gets no new requests.",
        situation="an engine that is dead, hung, failing, draining or ejected by an operator order",
        fix="Run `switchgear why ENGINE` for the cause and what ends it.",
    ),
    Code(
        code="SG209",
        title="degraded state",
        meaning="The subject is ejected, degraded, full, or kept in rotation against the evidence.",
        situation="`switchgear why` for an ejected engine",
        fix="Read in the same answer what would change it.",
    ),
    Code(
        code="SG217",
        title="refused and rolled back",
        meaning="The named proxies refused a resource that no proxy has accepted. They keep the last accepted content, or none of that name; other proxies are still sent it. Once three hosts or identities of one proxy version refused it, others of that version get the last accepted content. This lasts until a proxy accepts it or the content changes.",
        situation="a regular expression that Envoy refuses",
        fix="If proxies of one version refuse it, upgrade them. Otherwise correct the named policy line as Envoy's message says; new content is tried at once.",
    ),
    Code(
        code="SG219",
        title="canary rolled back",
        meaning="A canary of the last hour was rolled back, for the named reason: a proxy refused the policies, requests did worse, there was too little traffic, or an operator ended it. All proxies have the previous policies.",
        situation="`switchgear apply -f NEW --canary 10%`, and more requests fail",
        fix="Fix the policies if they did worse; if traffic was too low, use a longer `--for` or `--yes-if-unknown`. Then apply them again. `switchgear get events` shows start and end.",
    ),
)

_TRUST: Final = (
    Code(
        code="SG210",
        title="unusable certificate",
        meaning="The server's certificate files are unreadable or do not match. The previous pair stays in use; after a restart the server does not start.",
        situation="an interrupted rotation: a new certificate with the old key",
        fix="Restore files that match; they are reloaded without a restart.",
    ),
    Code(
        code="SG211",
        title="certificate expires soon",
        meaning="A certificate expires within a week, or has less than a quarter of its life left if that is shorter. Its renewal has failed.",
        situation="cert-manager that cannot reach its issuer",
        fix="Renew it; the files are reloaded without a restart.",
    ),
    Code(
        code="SG212",
        title="certificate expired",
        meaning="A certificate has expired. Existing connections continue; new ones are refused.",
        situation="a certificate of one year, a year later",
        fix="Renew it now; the files are reloaded without a restart.",
    ),
    Code(
        code="SG213",
        title="access rules refused",
        meaning="The `--access` file has errors. The previous rules stay in force; after a restart the server does not start.",
        situation="a typing error in the rules",
        fix="Correct the named line; the file is reloaded without a restart.",
    ),
    Code(
        code="SG214",
        title="unusable token",
        meaning="A token file of the access rules is unreadable or holds no token. It grants no access.",
        situation="a token of eight characters",
        fix="Write a token of at least 16 characters, as in docs/security.md.",
    ),
    Code(
        code="SG215",
        title="token readable by others",
        meaning="Users other than the owner can read a token file on the server's machine. The token works.",
        situation="a token written with the usual umask",
        fix="Run `chmod 600` on it (Kubernetes Secret: mount it with defaultMode 0440 and an fsGroup), and replace the token if others may have read it.",
    ),
    Code(
        code="SG216",
        title="unusable secret",
        meaning="A folder of `--secrets` is unusable. Proxies keep the previous secret; without one, pools that name it are unreachable.",
        situation="a key that does not match its certificate",
        fix="Restore files that match; they are reloaded without a restart.",
    ),
    Code(
        code="SG218",
        title="secret withheld",
        meaning="A pool names a secret with a private key, and some of its proxies are not authenticated. They do not get the key.",
        situation="an Envoy that connects in plaintext, and a pool whose engines require a client certificate",
        fix="Give those proxies certificates (`switchgear bootstrap --tls-cert`), and the server `--tls-cert` and `--tls-ca`.",
    ),
)

_REACH: Final = (
    Code(
        code="SG220",
        title="admin port unreachable",
        meaning="No Switchgear answers at the admin port, so the server cannot be checked.",
        situation="a server that is not running, or another port",
        fix="Start the server, or set its admin port with `--admin`.",
    ),
    Code(
        code="SG221",
        title="xDS port unreachable",
        meaning="No connection to the port that Envoys use.",
        situation="a network policy that blocks this machine",
        fix="Allow the connection, or run the check where Envoys run.",
    ),
    Code(
        code="SG222",
        title="agent not connected",
        meaning="A pool declares an agent for an engine, and the server is not connected to it. The probe takes over.",
        situation="a crashed agent",
        fix="Inspect the agent on the engine's machine; the server states why it is not connected.",
    ),
    Code(
        code="SG223",
        title="engine without reports",
        meaning="An engine has no report, or only an old one.",
        situation="an engine whose host name does not resolve",
        fix="Check its address in the pool, and the network.",
    ),
    Code(
        code="SG224",
        title="proxy without telemetry",
        meaning="A proxy is connected, but reports no traffic. Admission limits then follow slots alone.",
        situation="a proxy that cannot reach the server for access logs",
        fix="Check the cluster `switchgear` in that proxy, and the network.",
    ),
    Code(
        code="SG225",
        title="proxies refused",
        meaning="A client with a valid certificate keeps connecting as a proxy, and the access rules refuse it. A proxy that was connected before keeps its configuration without updates.",
        situation="a rule removed while its gateways still run",
        fix="If the proxy is yours, add its identity, node and zone to the `--access` file; otherwise find out who has the certificate.",
    ),
    Code(
        code="SG226",
        title="TLS engine in plaintext pool",
        meaning="A pool has no `tls`, so proxies and the control plane use plain HTTP, and an engine answers only TLS.",
        situation="vLLM started with `--ssl-certfile`, in a pool without `tls`",
        fix="Set `tls` in the pool (docs/security.md), or start the engine without its certificate.",
    ),
    Code(
        code="SG227",
        title="engine refuses its probe",
        meaning="An engine is up and refuses the probe (HTTP 401, 403, 404), so its callers may be refused too. It is ejected while a peer answers the same probe, and kept in rotation while none does.",
        situation="vLLM restarted with `--api-key` or another `--served-model-name`",
        fix="HTTP 401 or 403: set the key of the probe and its agent, or start the engine without `--api-key`. HTTP 404: start the engine with the pool's `model`, or correct the policy.",
    ),
    Code(
        code="SG228",
        title="pool without engines",
        meaning="A pool of the policies in force has no engine, so requests for it get 503, unless a fallback serves them.",
        situation="a selector that matches no pod, or a deployment scaled to zero",
        fix="Start engines, or correct `spec.endpoints` or `spec.kubernetes`. Remove the pool if nothing uses it.",
    ),
)

_PROCESS: Final = (
    Code(
        code="SG230",
        title="version mismatch",
        meaning="This command and the server have different versions; one may not know what the other sends.",
        situation="an old virtual environment on an operator's machine",
        fix="Install the version of the server.",
    ),
    Code(
        code="SG231",
        title="version too old",
        meaning="Python or a library is older than the version that Switchgear is tested with.",
        situation="grpcio from a distribution",
        fix="Install the versions in pyproject.toml.",
    ),
    Code(
        code="SG232",
        title="clock skew",
        meaning="The clocks of two machines differ. Ages and the order of log events mislead; decisions use no wall clock.",
        situation="a machine without NTP",
        fix="Synchronise the clocks.",
    ),
    Code(
        code="SG233",
        title="few open files left",
        meaning="Each proxy and agent takes an open file. At the limit new ones are refused.",
        situation="a limit of 1,024 for a fleet of a thousand",
        fix="Raise the limit (`ulimit -n`, LimitNOFILE) to at least four times the proxies and agents.",
    ),
    Code(
        code="SG234",
        title="state folder full or read-only",
        meaning="The server cannot persist state to disk: the last good policies, versions and orders.",
        situation="a full volume",
        fix="Free space, or set another folder with `--state-dir`.",
    ),
    Code(
        code="SG235",
        title="port in use",
        meaning="Another process listens on the server's port.",
        situation="a second server on one machine",
        fix="Stop that process, or choose another port.",
    ),
)

_CLUSTER: Final = (
    Code(
        code="SG240",
        title="permission missing",
        meaning="The service account lacks a permission that the control plane needs.",
        situation="a Role that was reduced by hand",
        fix="Apply the Roles of the chart; docs/deploy.md lists them.",
    ),
    Code(
        code="SG241",
        title="permissions unknown",
        meaning="The API does not report the permissions of the account (no SelfSubjectAccessReview).",
        situation="an API server behind a filtering proxy",
        fix="Compare the Roles with the table in docs/deploy.md.",
    ),
    Code(
        code="SG242",
        title="Kubernetes API unreachable",
        meaning="The Kubernetes API does not answer.",
        situation="a kubeconfig of another cluster",
        fix="Check `--kubeconfig`, `--kube-context` and the network.",
    ),
    Code(
        code="SG243",
        title="grace period too short",
        meaning="Kubernetes kills a pod before the longest drain ends: requests in flight break.",
        situation="terminationGracePeriodSeconds left at 30",
        fix="Set it slightly above the drain deadline of the agent.",
    ),
)

_ENVOY: Final = (
    Code(
        code="SG250",
        title="first-token gate missing",
        meaning="A pool sets `firstTokenGate: true`, but the engine has no gate: a hang before the first token looks like a success to Envoy.",
        situation="vLLM started without `--middleware first_token_gate.FirstTokenGate`",
        fix="Start the engine with the gate, or set `firstTokenGate: false`.",
    ),
    Code(
        code="SG251",
        title="first-token gate unknown",
        meaning="The check cannot reach the gate: it answers only on the engine's machine, or the engine requires a client certificate.",
        situation="`switchgear doctor` on an operator's machine",
        fix="Run the check on the engine's machine, or read its agent's metrics.",
    ),
    Code(
        code="SG252",
        title="Envoy too old",
        meaning="This Envoy is older than the tested versions. It may refuse resources or interpret them differently.",
        situation="Envoy 1.30 from a distribution",
        fix="Run the version in docs/deploy.md.",
    ),
    Code(
        code="SG253",
        title="Envoy extension missing",
        meaning="A proxy lacks an extension that its configuration uses, and will refuse it.",
        situation="an Envoy built with few extensions",
        fix="Run an Envoy with all extensions.",
    ),
    Code(
        code="SG254",
        title="proxy configuration differs",
        meaning="A proxy's configuration differs from the intended one.",
        situation="an Envoy that a second control plane serves",
        fix="Read the difference; `switchgear status` shows whether the proxy is behind or refused a resource.",
    ),
    Code(
        code="SG255",
        title="not compared",
        meaning="A part of a proxy's configuration is unavailable or must not be shown.",
        situation="the runtime of an Envoy, from a saved /config_dump page",
        fix="No action, or read it where it is available.",
    ),
    Code(
        code="SG256",
        title="proxy not connected",
        meaning="An Envoy is not connected to this server. It keeps its last configuration, and is compared with the one it would get now.",
        situation="an Envoy whose bootstrap has an address without a server",
        fix="Read its statistics `cluster.switchgear.*` and its log; with several replicas, query the one it is connected to.",
    ),
)

_FILES: Final = (
    Code(
        code="SG260",
        title="policies with errors",
        meaning="The given policy files have errors.",
        situation="`switchgear doctor -f` of a folder with an error",
        fix="Run `switchgear validate` for each error with its location.",
    ),
    Code(
        code="SG261",
        title="policies with warnings",
        meaning="The given policy files are valid but have warnings.",
        situation="`switchgear doctor -f` of a folder with warnings",
        fix="Run `switchgear validate` for each warning with its location.",
    ),
)

OPERATING: Final = (*_SERVING, *_TRUST, *_REACH, *_PROCESS, *_CLUSTER, *_ENVOY, *_FILES)
