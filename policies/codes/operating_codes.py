"""Codes of remarks on what runs: said by ``switchgear status``, ``why``, ``doctor`` and ``config-dump``."""

# ruff: noqa: E501 - a table of prose

from typing import Final

from policies.codes.code import Code

_SERVING: Final = (
    Code(
        code="SG200",
        title="policies refused",
        meaning="The policy files have errors. What was accepted before is served, and changes nothing more.",
        situation="a typing error in a file of a running server",
        fix="Mend what is named; `switchgear validate` says the same before it is rolled out.",
    ),
    Code(
        code="SG201",
        title="policies held back",
        meaning="The files are fine, but would drop so much at once that it looks like a mistake.",
        situation="a folder that lost half of its files",
        fix="Mend the files, or let it go with POST /v1/allow-shrink or `serve --allow-shrink`.",
    ),
    Code(
        code="SG202",
        title="source of policies out of touch",
        meaning="The Kubernetes API does not answer. What was last known is served.",
        situation="an API server that is being upgraded",
        fix="See to the API; nothing has to be done here. Without `--state-dir` a restart would wait for it.",
    ),
    Code(
        code="SG203",
        title="policies of the last run",
        meaning="The server could not read policies since it started, and serves what it kept in `--state-dir`.",
        situation="a folder that is not mounted",
        fix="Make the policies readable.",
    ),
    Code(
        code="SG204",
        title="resource refused by a proxy",
        meaning="A proxy answered a resource with a refusal (NACK). It keeps what it had; the resource is not sent again unchanged.",
        situation="an Envoy that is older than a field it is sent",
        fix="Look at the line of the policies that is named, and at Envoy's own words.",
    ),
    Code(
        code="SG205",
        title="proxy behind",
        meaning="A proxy has not confirmed for longer than half a minute what it was sent.",
        situation="an Envoy that is stopped, or that waits for a cluster to warm",
        fix="Look at the proxy: `switchgear config-dump PROXY --diff`, its log, its processor time.",
    ),
    Code(
        code="SG206",
        title="no proxy connected",
        meaning="Nobody is served. Envoys that were, go on with what they have.",
        situation="a firewall between Envoys and the xDS port",
        fix="Look at the address in the bootstrap of the Envoys, certificates, and network policies.",
    ),
    Code(
        code="SG207",
        title="server not ready",
        meaning="The xDS port is closed: there is nothing to serve yet.",
        situation="a server whose first policies are refused",
        fix="Do what the reason says.",
    ),
    Code(
        code="SG208",
        title="engine out",
        meaning="An engine takes no new requests.",
        situation="an engine that is dead, hung, failing, drained or ejected by order",
        fix="`switchgear why ENGINE` says why and what would bring it back.",
    ),
    Code(
        code="SG209",
        title="not as it should be",
        meaning="The subject is out, degraded, full, or kept in against the evidence.",
        situation="`switchgear why` of an engine that is out",
        fix="Read what would change it, in the same answer.",
    ),
    Code(
        code="SG217",
        title="refused, and rolled back",
        meaning="A proxy refused what the policies come to, so no proxy is sent it: all have the last content that was accepted, or nothing of that name. So it stays, whoever connects, until the content is another.",
        situation="a regular expression that Envoy does not take, after the Envoy that refused it was restarted",
        fix="Mend the line of the policies that is named, by Envoy's own words; what it comes to is tried again by itself.",
    ),
    Code(
        code="SG219",
        title="canary rolled back",
        meaning="Policies were tried on some proxies within the last hour and taken back, for the reason that is named: a proxy refused them, requests did worse under them, too few came to tell, or somebody ended it. All proxies have what they had before.",
        situation="`switchgear apply --canary 10%` of policies under which more requests failed",
        fix="By the reason that is named: mend the policies where they did worse; try longer (`--for`) or with `--yes-if-unknown` where there was too little traffic to tell; ask whoever ended it. Then apply them again. `switchgear get events` has when it began and ended.",
    ),
)

_TRUST: Final = (
    Code(
        code="SG210",
        title="certificate cannot be used",
        meaning="The certificate files of the server cannot be read, or do not belong together. The pair that was read before stays in use, until the server is restarted: then it does not start.",
        situation="a rotation that stopped half way: a new certificate beside the old key",
        fix="Put back files that belong together; they are taken up without a restart.",
    ),
    Code(
        code="SG211",
        title="certificate ends soon",
        meaning="A certificate ends within a week, or has less than a quarter of its life left where that is less. Whoever renews it has not.",
        situation="cert-manager that cannot reach its issuer",
        fix="Renew it; the files are taken up without a restart.",
    ),
    Code(
        code="SG212",
        title="certificate has ended",
        meaning="A certificate is past its end. Connections that stand go on; whoever connects anew refuses it.",
        situation="a certificate of a year, a year later",
        fix="Renew it now; the files are taken up without a restart.",
    ),
    Code(
        code="SG213",
        title="rules of access refused",
        meaning="The file of `--access` has errors. The rules that were read before stay in force, until the server is restarted: then it does not start.",
        situation="a typing error in the rules",
        fix="Mend the line that is named; the file is taken up without a restart.",
    ),
    Code(
        code="SG214",
        title="token cannot be used",
        meaning="A token file of the rules of access cannot be read, or holds no token. Nobody can come in by it.",
        situation="a token of eight characters",
        fix="Write a token of at least 16 characters there, as in docs/security.md.",
    ),
    Code(
        code="SG215",
        title="token open to others",
        meaning="Others than its owner may read a token file on the machine of the server. The token works.",
        situation="a token written with the usual umask",
        fix="`chmod 600` it (a Secret of Kubernetes: mount it with defaultMode 0440 and an fsGroup), and think about who may have read it.",
    ),
    Code(
        code="SG216",
        title="secret cannot be used",
        meaning="A folder of `--secrets` cannot be used. Proxies keep the secret that was read before; one that was never read is nobody's, and pools that name it cannot be reached.",
        situation="a key that does not belong to its certificate",
        fix="Put back files that belong together; they are taken up without a restart.",
    ),
    Code(
        code="SG218",
        title="secret withheld",
        meaning="A pool names a secret with a private key, and some proxies that are served the pool have not proved who they are: they are not sent the key.",
        situation="an Envoy that connects in plain text over a network, and a pool whose engines ask for a certificate",
        fix="Give those proxies certificates (`switchgear bootstrap --tls-cert`), and the server `--tls-cert` and `--tls-ca`.",
    ),
)

_REACH: Final = (
    Code(
        code="SG220",
        title="no answer of the admin port",
        meaning="Nobody answers there as a Switchgear does. What is asked of a server cannot be checked.",
        situation="a server that is not running, or another port",
        fix="Start the server, or name its admin port with `--admin`.",
    ),
    Code(
        code="SG221",
        title="port not to be reached",
        meaning="No connection to the port that Envoys are told to use.",
        situation="a network policy that forgets the machine this runs on",
        fix="Open the way, or run the check from where Envoys run.",
    ),
    Code(
        code="SG222",
        title="agent not heard",
        meaning="An engine has an agent by its policy, and the server is not connected to it. The probe stands in.",
        situation="an agent that has crashed",
        fix="Look at the agent beside the engine; the server says why it is not connected.",
    ),
    Code(
        code="SG223",
        title="engine not heard",
        meaning="No report of an engine, or only an old one.",
        situation="an engine whose host name has no address yet",
        fix="Look at the address in its pool, and at the network between.",
    ),
    Code(
        code="SG224",
        title="telemetry not heard",
        meaning="A proxy is connected for traffic, and tells nothing about its calls. Ceilings then follow slots alone.",
        situation="a proxy that cannot reach the server for its access logs",
        fix="Look at the cluster `switchgear` in that proxy, and at what lies between.",
    ),
    Code(
        code="SG225",
        title="proxies turned away",
        meaning="Somebody with a certificate of the authorities keeps coming as a proxy, and the rules of access do not let them. A proxy that was let in before goes on with what it has, and hears of nothing new.",
        situation="a rule that was taken out while its gateways still run",
        fix="If they are yours, name their identity, node and zone in the file of `--access`; if not, ask who has that certificate.",
    ),
    Code(
        code="SG226",
        title="engine speaks TLS, its pool does not",
        meaning="A pool says no `tls`, so proxies and the control plane speak plain HTTP to its engines; and an engine of it shows a certificate and answers nothing else.",
        situation="vLLM that was started with `--ssl-certfile`, in a pool that was not told",
        fix="Say `tls` in the pool (docs/security.md), or start the engine without its certificate.",
    ),
)

_PROCESS: Final = (
    Code(
        code="SG230",
        title="versions apart",
        meaning="This command line and the server are of different versions: what one says the other may not know.",
        situation="an old virtual environment on the machine of an operator",
        fix="Install the version of the server.",
    ),
    Code(
        code="SG231",
        title="version too old",
        meaning="Python or a library is older than what Switchgear is built and tested with.",
        situation="grpcio from a distribution",
        fix="Install what pyproject.toml asks for.",
    ),
    Code(
        code="SG232",
        title="clocks apart",
        meaning="Two machines do not agree on the time. Ages and the order of events in logs then mislead; decisions use no wall clock.",
        situation="a machine without NTP",
        fix="Synchronise the clocks.",
    ),
    Code(
        code="SG233",
        title="few open files left",
        meaning="Each proxy and each agent is an open file. At the limit, new ones are refused.",
        situation="a limit of 1,024 and a fleet of a thousand",
        fix="Raise the limit (`ulimit -n`, LimitNOFILE) to at least four times the proxies and agents.",
    ),
    Code(
        code="SG234",
        title="state folder full or read-only",
        meaning="What a restart begins with cannot be written: the last good policies, versions, orders.",
        situation="a volume that is full",
        fix="Make room, or name another folder with `--state-dir`.",
    ),
    Code(
        code="SG235",
        title="port taken",
        meaning="Another process listens where a server is to listen.",
        situation="a second server on one machine",
        fix="Stop the other, or choose another port.",
    ),
)

_CLUSTER: Final = (
    Code(
        code="SG240",
        title="right missing",
        meaning="The account may not do in the cluster what the control plane does there.",
        situation="a Role that was cut down by hand",
        fix="Apply the Roles of the chart; docs/deploy.md has the table.",
    ),
    Code(
        code="SG241",
        title="rights cannot be asked",
        meaning="The API does not say what the account may do (no SelfSubjectAccessReview).",
        situation="an API server behind a proxy that filters",
        fix="Compare the Roles with the table in docs/deploy.md by hand.",
    ),
    Code(
        code="SG242",
        title="Kubernetes API not to be reached",
        meaning="No answer of the Kubernetes API.",
        situation="a kubeconfig of another cluster",
        fix="Look at `--kubeconfig`, `--kube-context` and the network.",
    ),
    Code(
        code="SG243",
        title="grace period too short",
        meaning="Kubernetes kills a pod before the longest drain is over: requests under way break.",
        situation="terminationGracePeriodSeconds left at 30",
        fix="Set it to the drain deadline of the agent and a little more.",
    ),
)

_ENVOY: Final = (
    Code(
        code="SG250",
        title="gate missing",
        meaning="A pool says `firstTokenGate: true`, and the engine has no gate: a hang before the first token looks like a success to Envoy.",
        situation="vLLM started without `--middleware first_token_gate.FirstTokenGate`",
        fix="Start the engine with the gate, or say `firstTokenGate: false`.",
    ),
    Code(
        code="SG251",
        title="gate not to be seen",
        meaning="Whether the gate is there is not known: it answers only to its own machine, and this is another, or the engine wants a certificate of whoever asks.",
        situation="`switchgear doctor` on the machine of an operator",
        fix="Run the check on the machine of the engine, or ask its agent's metrics.",
    ),
    Code(
        code="SG252",
        title="Envoy too old",
        meaning="An Envoy older than what Switchgear is tested with may refuse what it is sent, or read it otherwise.",
        situation="Envoy 1.30 of a distribution",
        fix="Run the version of docs/deploy.md.",
    ),
    Code(
        code="SG253",
        title="Envoy lacks an extension",
        meaning="A proxy was built without an extension that its configuration names; it will refuse that.",
        situation="an Envoy built with few extensions",
        fix="Run an Envoy with all of its extensions.",
    ),
    Code(
        code="SG254",
        title="proxy holds something else",
        meaning="What a proxy has is not what it is meant to have.",
        situation="an Envoy that a second control plane serves",
        fix="Read the difference; `switchgear status` says whether it is behind or has refused something.",
    ),
    Code(
        code="SG255",
        title="not compared",
        meaning="A part of what a proxy has cannot be had or may not be shown.",
        situation="the runtime of an Envoy, where there is only a kept page /config_dump",
        fix="Nothing, or ask where it can be had.",
    ),
    Code(
        code="SG256",
        title="proxy not connected",
        meaning="An Envoy is not connected to the server that was asked: it keeps what it was last told, and is compared with what it would be told now.",
        situation="an Envoy whose bootstrap names an address where no server is any more",
        fix="Its statistics `cluster.switchgear.*` and its log say why it does not come; of several replicas ask the one that it is at.",
    ),
)

_FILES: Final = (
    Code(
        code="SG260",
        title="policies with errors",
        meaning="The files that were named would be refused.",
        situation="`switchgear doctor -f` of a folder with an error",
        fix="`switchgear validate` shows each with its place.",
    ),
    Code(
        code="SG261",
        title="policies with advice",
        meaning="The files that were named are valid, and some of what they say will hurt.",
        situation="`switchgear doctor -f` of a folder with advice",
        fix="`switchgear validate` shows each with its place.",
    ),
)

OPERATING: Final = (*_SERVING, *_TRUST, *_REACH, *_PROCESS, *_CLUSTER, *_ENVOY, *_FILES)
