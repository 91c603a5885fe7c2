"""Checks beyond the schema: matching names, open ports, known flags, sufficient times."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import engine.agent.cli.run
import xds_server.cli
from deploy import render
from engine.agent.agent_config import parse_duration
from policies.load import load
from tests.deploy import helm_rendering
from tests.deploy.helm_rendering import Document
from xds_server.envoy_bootstrap import Bootstrap

SOURCES = [*helm_rendering.VALUE_SETS, "examples/client-with-envoy.yaml"]
GIVEN = {
    *("switchgear-tls", "switchgear-gateway-tls", "switchgear-agent-tls", "switchgear-engine-tls"),
    *("switchgear-access", "engines", "engine-api-key"),
}
"""Secrets named in values and created outside the chart."""


@pytest.fixture(params=SOURCES)
def found(request: pytest.FixtureRequest) -> Sequence[Document]:
    source = request.param
    if source.endswith(".yaml"):
        return helm_rendering.written(source)
    return helm_rendering.documents(source)


def test_selectors_match_only_pods_of_their_workload(found: Sequence[Document]) -> None:
    workloads = helm_rendering.pods(found)
    for workload, template in workloads:
        selector = workload["spec"]["selector"]["matchLabels"]
        assert helm_rendering.matches(selector, template["metadata"]["labels"])
        others = [
            other for other, their in workloads if helm_rendering.matches(selector, their["metadata"]["labels"])
        ]
        assert others == [workload]


def test_services_and_budgets_select_one_workload(found: Sequence[Document]) -> None:
    for one in helm_rendering.of_kind(found, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = one["spec"]
        selector = spec.get("podSelector", spec.get("selector"))
        labels = selector.get("matchLabels", selector)
        selected = [
            workload
            for workload, template in helm_rendering.pods(found)
            if helm_rendering.matches(labels, template["metadata"]["labels"])
            and workload["metadata"]["namespace"] == one["metadata"]["namespace"]
        ]
        assert len(selected) == 1, f"{one['kind']} {one['metadata']['name']} selects {len(selected)} workloads"


def test_monitors_select_services_with_their_port(found: Sequence[Document]) -> None:
    for monitor in helm_rendering.of_kind(found, "ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"]
        services = [
            one
            for one in helm_rendering.of_kind(found, "Service")
            if helm_rendering.matches(labels, one["metadata"]["labels"])
        ]
        assert len(services) == 1, monitor["metadata"]["name"]
        offered = {port["name"] for port in services[0]["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= offered


def test_services_target_open_ports(found: Sequence[Document]) -> None:
    for service in helm_rendering.of_kind(found, "Service"):
        for _, template in helm_rendering.pods(found):
            if helm_rendering.matches(service["spec"]["selector"], template["metadata"]["labels"]):
                offered = [helm_rendering.ports(one) for one in helm_rendering.lasting(template)]
                # Some Kubernetes versions resolve port names only in regular containers, not in sidecars.
                names = {name for one in template["spec"]["containers"] for name in helm_rendering.ports(one)}
                numbers = {number for one in offered for number in one.values()}
                for port in service["spec"]["ports"]:
                    target = port["targetPort"]
                    assert target in (numbers if isinstance(target, int) else names), (
                        f"{service['metadata']['name']}: {target}"
                    )


def test_every_liveness_and_readiness_probe_uses_an_open_port(found: Sequence[Document]) -> None:
    for _, template in helm_rendering.pods(found):
        numbers = {
            number for one in helm_rendering.lasting(template) for number in helm_rendering.ports(one).values()
        }
        for container in helm_rendering.lasting(template):
            for name, handler in helm_rendering.handlers(container):
                for how in ("httpGet", "tcpSocket"):
                    if how in handler:
                        port = handler[how]["port"]
                        # A named port is the container's own; other containers' ports need numbers.
                        assert port in (numbers if isinstance(port, int) else helm_rendering.ports(container)), (
                            name
                        )


def test_containers_of_a_pod_use_distinct_ports(found: Sequence[Document]) -> None:
    for _, template in helm_rendering.pods(found):
        opened = [
            number for one in helm_rendering.lasting(template) for number in helm_rendering.ports(one).values()
        ]
        assert len(opened) == len(set(opened))


def test_referenced_objects_exist(found: Sequence[Document]) -> None:
    there = {(one["kind"], one["metadata"]["name"]) for one in found}
    for _, template in helm_rendering.pods(found):
        spec = template["spec"]
        if "serviceAccountName" in spec:
            assert ("ServiceAccount", spec["serviceAccountName"]) in there
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
            assert volume.get("secret", {}).get("secretName") in {None} | GIVEN
        for container in helm_rendering.containers(template):
            mounted = [mount["name"] for mount in container.get("volumeMounts", ())]
            assert set(mounted) <= set(volumes)
    for binding in helm_rendering.of_kind(found, "RoleBinding", "ClusterRoleBinding"):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in there
        for subject in binding["subjects"]:
            assert (subject["kind"], subject["name"]) in there
    for scaler in helm_rendering.of_kind(found, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in there


def test_scripts_are_in_the_mounted_config_maps(found: Sequence[Document]) -> None:
    maps = {one["metadata"]["name"]: one["data"] for one in helm_rendering.of_kind(found, "ConfigMap")}
    for _, template in helm_rendering.pods(found):
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", ())}
        for container in template["spec"]["containers"]:
            files = {
                f"{mount['mountPath']}/{name}"
                for mount in container.get("volumeMounts", ())
                for name in maps.get(volumes[mount["name"]].get("configMap", {}).get("name"), ())
            }
            flags = [
                word
                for _, handler in helm_rendering.handlers(container)
                for word in handler.get("exec", {}).get("command", ())
            ]
            assert {word for word in flags if word.startswith("/opt/switchgear/")} <= files
            if any("first_token_gate" in word for word in helm_rendering.words(container)):
                assert "/opt/switchgear/first_token_gate.py" in files
                assert {"name": "PYTHONPATH", "value": "/opt/switchgear"} in container["env"]


def test_every_container_has_a_restricted_security_context(found: Sequence[Document]) -> None:
    for _, template in helm_rendering.pods(found):
        spec = template["spec"]
        # A Service named switchgear would set SWITCHGEAR_PORT, which looks like a setting.
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False or "serviceAccountName" in spec
        for container in helm_rendering.containers(template):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "requests" in container["resources"]
            assert "memory" in container["resources"]["limits"]
            if container["name"] != "vllm":  # its image runs as root and writes to its home
                assert context["readOnlyRootFilesystem"] is True
                assert (context | spec["securityContext"])["runAsNonRoot"] is True
                assert (context | spec["securityContext"])["runAsUser"] > 0


def test_every_image_has_a_version(found: Sequence[Document]) -> None:
    for _, template in helm_rendering.pods(found):
        for container in helm_rendering.containers(template):
            assert re.search(r"(:[^/]*\d[^/]*|@sha256:[0-9a-f]{64})$", container["image"]), container["image"]


def test_pod_disruption_budget_allows_at_least_one_eviction(found: Sequence[Document]) -> None:
    scaled = {
        one["spec"]["scaleTargetRef"]["name"]: one["spec"].get("minReplicas", one["spec"].get("minReplicaCount"))
        for one in helm_rendering.of_kind(found, "HorizontalPodAutoscaler", "ScaledObject")
    }
    for budget in helm_rendering.of_kind(found, "PodDisruptionBudget"):
        (workload,) = [
            one
            for one, template in helm_rendering.pods(found)
            if helm_rendering.matches(budget["spec"]["selector"]["matchLabels"], template["metadata"]["labels"])
        ]
        replicas = scaled.get(workload["metadata"]["name"], workload["spec"].get("replicas"))
        assert budget["spec"].get("minAvailable", 0) < replicas
        # A fixed replica count would override the autoscaler.
        assert (workload["metadata"]["name"] in scaled) != ("replicas" in workload["spec"])


def _flags(container: Document, *command: str) -> dict[str, list[str]]:
    """Flags and values of a container after one of our commands."""
    words = list(helm_rendering.words(container))
    assert words[: len(command)] == list(command)
    flags: dict[str, list[str]] = {}
    for word in words[len(command) :]:
        name, _, value = word.partition("=")
        assert name.startswith("--"), f"{word}: write flag and value as one word with ="
        flags.setdefault(name, []).append(value)
    return flags


def _running(found: Sequence[Document], *command: str) -> list[Document]:
    return [
        container
        for _, template in helm_rendering.pods(found)
        for container in helm_rendering.containers(template)
        if container.get("command") == list(command)
    ]


@pytest.mark.parametrize("name", ["serve", "bootstrap"])
def test_flags_of_the_control_plane_exist(found: Sequence[Document], name: str) -> None:
    group = xds_server.cli.group
    command = group.get_command(group.make_context("switchgear", ["--help"], resilient_parsing=True), name)
    assert command is not None
    for container in _running(found, "switchgear", name):
        # Parsed by the command, without running it.
        words = [word.replace("$(MEMORY_LIMIT)", "1073741824") for word in helm_rendering.words(container)[2:]]
        arguments = [re.sub(r"\$\(\w+\)", "x", word) for word in words]
        command.make_context(name, arguments)


def test_gateway_bootstrap_flags_are_valid(found: Sequence[Document]) -> None:
    for container in _running(found, "switchgear", "bootstrap"):
        flags = _flags(container, "switchgear", "bootstrap")
        assert ("--zone" in flags) != ("--kubernetes-node" in flags)
        Bootstrap(node="n", admin_port=int(flags["--admin-port"][0]), health_port=int(flags["--health-port"][0]))


def test_flags_of_the_agent_exist(found: Sequence[Document]) -> None:
    for container in _running(found, "switchgear-agent", "run"):
        program, name, *words = helm_rendering.words(container)
        assert (program, name) == ("switchgear-agent", "run")
        context = engine.agent.cli.run.command.make_context(name, words)
        flags = {name: value for name, value in context.params.items() if name != "config" and value is not None}
        engine.agent.agent_config.agent_config(flags, environment={})


def test_environment_that_arguments_name_is_set(found: Sequence[Document]) -> None:
    for _, template in helm_rendering.pods(found):
        for container in helm_rendering.containers(template):
            named = {name for word in helm_rendering.words(container) for name in re.findall(r"\$\((\w+)\)", word)}
            assert named <= {one["name"] for one in container.get("env", ())}


def test_envoys_with_internal_listeners_have_no_drain_time(found: Sequence[Document]) -> None:
    for _, template in helm_rendering.pods(found):
        by_name = {one["name"]: one for one in helm_rendering.containers(template)}
        if "envoy" in by_name:
            cuts = "--cuts" in by_name["bootstrap"]["args"]
            args = by_name["envoy"]["args"]
            drain_s = int(args[args.index("--drain-time-s") + 1])
            assert (drain_s == 0) == cuts


def test_envoys_find_the_control_plane_and_their_bootstrap(found: Sequence[Document]) -> None:
    services = {
        f"{one['metadata']['name']}.{one['metadata']['namespace']}.svc:{port['port']}"
        # The example needs the control plane of the chart.
        for one in helm_rendering.of_kind([*found, *helm_rendering.documents("default")], "Service")
        for port in one["spec"]["ports"]
    }
    for container in _running(found, "switchgear", "bootstrap"):
        flags = _flags(container, "switchgear", "bootstrap")
        assert set(flags["--server"]) <= services
        (template,) = [one for _, one in helm_rendering.pods(found) if container in helm_rendering.containers(one)]
        (envoy,) = [one for one in helm_rendering.containers(template) if one["name"] == "envoy"]
        assert flags["--out"] == [envoy["args"][envoy["args"].index("--config-path") + 1]]
        assert int(flags["--health-port"][0]) == helm_rendering.ports(envoy)["health"]


def _whole_s(text: str) -> float:
    return parse_duration(text) if text[-1] in "smh" else float(text)


def test_termination_grace_period_outlasts_the_drain(found: Sequence[Document]) -> None:
    for workload, template in helm_rendering.pods(found):
        grace_s = template["spec"].get("terminationGracePeriodSeconds", 30)
        by_name = {one["name"]: one for one in helm_rendering.containers(template)}
        if "vllm" in by_name:
            hook = by_name["vllm"]["lifecycle"]["preStop"]["exec"]["command"]
            drain_s = next(_whole_s(word.split("=")[1]) for word in hook if word.startswith("--deadline="))
            shutdown_s = next(
                _whole_s(word.split("=")[1])
                for word in by_name["vllm"]["args"]
                if word.startswith("--shutdown-timeout=")
            )
            agent_s = _whole_s(_flags(by_name["agent"], "switchgear-agent", "run")["--drain-deadline"][0])
            assert grace_s > drain_s + shutdown_s + agent_s, workload["metadata"]["name"]
        elif "preStop" in by_name.get("envoy", {}).get("lifecycle", {}):
            lame_duck_s, drain_s = map(float, by_name["envoy"]["lifecycle"]["preStop"]["exec"]["command"][-2:])
            assert grace_s > drain_s > lame_duck_s
        elif "switchgear" in by_name:
            assert grace_s > by_name["switchgear"]["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_agent_starts_before_and_stops_after_its_engine(found: Sequence[Document]) -> None:
    for _, template in helm_rendering.pods(found):
        if any(one["name"] == "vllm" for one in template["spec"]["containers"]):
            (agent,) = [one for one in template["spec"]["initContainers"] if one["name"] == "agent"]
            assert agent["restartPolicy"] == "Always"
            (vllm,) = template["spec"]["containers"]
            # httpGet to the agent would restart the engine whenever the agent is down.
            assert "httpGet" not in vllm["livenessProbe"]
            assert "readinessProbe" not in agent
            assert vllm["startupProbe"]["httpGet"]["path"] == "/startupz"
            assert vllm["readinessProbe"]["httpGet"]["path"] == "/readyz"
            limit_s = _whole_s(_flags(agent, "switchgear-agent", "run")["--start-limit"][0])
            assert vllm["startupProbe"]["periodSeconds"] * vllm["startupProbe"]["failureThreshold"] >= limit_s


def test_annotations_match_container_flags() -> None:
    for workload, template in helm_rendering.pods(helm_rendering.documents("engines")):
        annotations = template["metadata"].get("annotations", {})
        if "switchgear.dev/slots" in annotations:
            (vllm,) = template["spec"]["containers"]
            (agent,) = [one for one in template["spec"]["initContainers"] if one["name"] == "agent"]
            flags = _flags(agent, "switchgear-agent", "run")
            assert flags["--slots"] == [annotations["switchgear.dev/slots"]]
            assert f"--max-num-seqs={annotations['switchgear.dev/slots']}" in vllm["args"]
            assert int(annotations["switchgear.dev/agent-port"]) == helm_rendering.ports(agent)["agent-grpc"]
            assert str(vllm["resources"]["limits"]["nvidia.com/gpu"]) == annotations["switchgear.dev/gpus"]
            assert all(isinstance(value, str) for value in annotations.values()), workload["metadata"]["name"]


def test_example_policies_match_the_chart() -> None:
    policies = render.DEPLOY / "examples" / "policies.yaml"
    load([policies])
    pool, route = helm_rendering.parsed(policies.read_text())
    found = helm_rendering.documents("engines")
    service = helm_rendering.named(found, "Service", pool["spec"]["kubernetes"]["service"])
    offered = {port["name"]: port["targetPort"] for port in service["spec"]["ports"]}
    assert pool["spec"]["kubernetes"]["port"] in offered
    assert pool["spec"]["kubernetes"]["agentPort"] in offered
    (_, template) = next(
        one for one in helm_rendering.pods(found) if one[0]["metadata"]["name"] == service["metadata"]["name"]
    )
    assert str(pool["spec"]["slotsPerEngine"]) == template["metadata"]["annotations"]["switchgear.dev/slots"]
    gateway = helm_rendering.named(found, "Service", "switchgear-gateway")
    assert route["spec"]["listener"]["port"] in {port["port"] for port in gateway["spec"]["ports"]}


def test_plaintext_xds_needs_an_explicit_flag_and_mtls_replaces_it() -> None:
    for values, secure in (("default", False), ("tls", True)):
        found = helm_rendering.documents(values)
        (server,) = helm_rendering.named(found, "Deployment", "switchgear")["spec"]["template"]["spec"][
            "containers"
        ]
        assert ("--insecure" in server["args"]) is not secure
        assert any(word.startswith("--tls-cert=") for word in server["args"]) is secure
        probes = {
            server[kind]["httpGet"]["scheme"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        assert probes == {"HTTPS" if secure else "HTTP"}
        gateway = helm_rendering.named(found, "Deployment", "switchgear-gateway")["spec"]["template"]["spec"]
        (bootstrap,) = gateway["initContainers"]
        assert any(word.startswith("--tls-cert=") for word in bootstrap["args"]) is secure


def _engine_pod(values: str, name: str) -> tuple[Document, Document]:
    """Containers of agent and vLLM."""
    spec = helm_rendering.named(helm_rendering.documents(values), "Deployment", name)["spec"]["template"]["spec"]
    (agent,), (vllm,) = spec["initContainers"], spec["containers"]
    return agent, vllm


def test_agents_with_certificates_use_mtls() -> None:
    (server,) = helm_rendering.named(helm_rendering.documents("tls"), "Deployment", "switchgear")["spec"][
        "template"
    ]["spec"]["containers"]
    assert "--agent-name=switchgear-agent.inference.svc" in server["args"]
    agent, vllm = _engine_pod("tls", "plain")
    flags = _flags(agent, "switchgear-agent", "run")
    assert flags["--tls-ca"] == ["/etc/switchgear/certificate/ca.crt"]
    assert flags["--allowed-clients"] == ["spiffe://cluster.local/ns/inference/sa/switchgear"]
    assert "--insecure" not in flags
    assert flags["--engine"] == ["http://127.0.0.1:8000"]
    assert {vllm[kind]["httpGet"]["scheme"] for kind in ("startupProbe", "readinessProbe")} == {"HTTPS"}
    assert agent["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    for command in (vllm["livenessProbe"]["exec"]["command"], vllm["lifecycle"]["preStop"]["exec"]["command"]):
        assert f"--agent=https://127.0.0.1:{helm_rendering.ports(agent)['agent-http']}" in command
        assert "--name=switchgear-agent.inference.svc" in command
        (ca,) = [word.removeprefix("--ca=") for word in command if word.startswith("--ca=")]
        assert str(Path(ca).parent) in {mount["mountPath"] for mount in vllm["volumeMounts"]}
    volumes = {
        one["name"]: one
        for one in helm_rendering.named(helm_rendering.documents("tls"), "Deployment", "plain")["spec"][
            "template"
        ]["spec"]["volumes"]
    }
    # vLLM runs a third-party image: it gets the CA, but not the agent's key.
    assert [item["key"] for item in volumes["agent-authorities"]["secret"]["items"]] == ["ca.crt"]
    assert "certificate" not in {mount["name"] for mount in vllm["volumeMounts"]}


def test_tls_engines_are_probed_by_tls_and_serve_has_their_secrets() -> None:
    agent, vllm = _engine_pod("tls", "chat")
    flags = _flags(agent, "switchgear-agent", "run")
    assert flags["--engine"] == ["https://127.0.0.1:8000"]
    assert flags["--engine-server-name"] == ["chat.inference.svc"]
    assert str(Path(flags["--engine-ca"][0]).parent) in {mount["mountPath"] for mount in agent["volumeMounts"]}
    for flag in ("--ssl-certfile", "--ssl-keyfile"):
        (file,) = [word.partition("=")[2] for word in vllm["args"] if word.startswith(f"{flag}=")]
        assert str(Path(file).parent) in {mount["mountPath"] for mount in vllm["volumeMounts"]}
    assert "--enable-ssl-refresh" in vllm["args"]
    monitor = helm_rendering.named(helm_rendering.documents("tls"), "ServiceMonitor", "chat")
    assert {one["port"]: one["tlsConfig"]["serverName"] for one in monitor["spec"]["endpoints"]} == {
        "http": "chat.inference.svc",
        "agent-http": "switchgear-agent.inference.svc",
    }
    (server,) = helm_rendering.named(helm_rendering.documents("tls"), "Deployment", "switchgear")["spec"][
        "template"
    ]["spec"]["containers"]
    (folder,) = _flags(server, "switchgear", "serve")["--secrets"]
    assert f"{folder}/engines" in {mount["mountPath"] for mount in server["volumeMounts"]}


def test_engine_and_agent_share_the_api_key_of_one_secret() -> None:
    agent, vllm = _engine_pod("tls", "chat")
    (file,) = _flags(agent, "switchgear-agent", "run")["--engine-api-key-file"]
    assert str(Path(file).parent) in {mount["mountPath"] for mount in agent["volumeMounts"]}
    (key,) = [one["valueFrom"]["secretKeyRef"] for one in vllm["env"] if one["name"] == "VLLM_API_KEY"]
    assert key == {"name": "engine-api-key", "key": Path(file).name}
    plain, _ = _engine_pod("tls", "plain")
    assert "--engine-api-key-file" not in _flags(plain, "switchgear-agent", "run")


def test_plaintext_agents_need_flags_on_both_sides() -> None:
    agent, vllm = _engine_pod("plaintext-agents", "chat")
    assert "--insecure" in agent["args"]
    assert vllm["readinessProbe"]["httpGet"]["scheme"] == "HTTP"
    found = helm_rendering.named(helm_rendering.documents("plaintext-agents"), "Deployment", "switchgear")
    (server,) = found["spec"]["template"]["spec"]["containers"]
    assert "--plaintext-agents=chat" in server["args"]
    assert "--insecure" not in server["args"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ("insecure: false", "tls.controlPlane: set a secret with tls.crt, tls.key and ca.crt"),
        ("tls: {}", "for a trial set insecure=true; one of the two is required"),
        ("tls: {agents: a}", "agents would require a certificate that the control plane lacks"),
        (
            "{insecure: true, tls: {controlPlane: a, gateway: b}, engines: [{name: c, model: m}]}",
            "does not connect to agents in plain text",
        ),
        (
            "{tls: {controlPlane: a, gateway: b, plaintextAgents: [c]}, engines: [{name: c, model: m}]}",
            "tls.agents: set a secret for the agents of engines",
        ),
        ("{insecure: true, tls: {controlPlane: a, gateway: b}}", "insecure: no effect"),
        ("tls: {controlPlane: a, gateway: b, agents: c, plaintextAgents: [d]}", "tls.plaintextAgents"),
        (
            "engines: [{name: c, model: m, tls: {secret: a}}]",
            "engines[c].tls.serverName: required",
        ),
        ("engines: [{name: c, model: m, tls: {serverName: a}}]", "tls.serverName: needs tls.secret"),
        ("tls: {engineSecrets: [../etc]}", "tls.engineSecrets"),
    ],
)
def test_invalid_tls_values_are_refused(values: str, complaint: str, tmp_path: Path) -> None:
    assert complaint in helm_rendering.complaint(values, tmp_path)


def test_one_sided_certificates_are_refused(tmp_path: Path) -> None:
    assert "tls.gateway: required" in helm_rendering.complaint("tls: {controlPlane: a}", tmp_path)
    assert "set both secrets or neither" in helm_rendering.complaint("tls: {gateway: a}", tmp_path)
    assert "tls.access: needs tls.controlPlane" in helm_rendering.complaint("tls: {access: a}", tmp_path)
