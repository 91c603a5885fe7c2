{{/* One set of engines as it is after its defaults, or the reason why it cannot be. Gives YAML. */}}
{{- define "switchgear.engine" -}}
{{- $one := mergeOverwrite (deepCopy .root.Values.engineDefaults) (deepCopy .said) -}}
{{- $where := printf "engines[%s]" $one.name -}}
{{- if not $one.name }}
{{- fail "engines: each needs a name" }}
{{- end }}
{{- if not $one.model }}
{{- fail (printf "%s.model: say which model vLLM is to serve" $where) }}
{{- end }}
{{- $fullname := include "switchgear.fullname" .root -}}
{{- if has $one.name (list $fullname (printf "%s-gateway" $fullname)) }}
{{- fail (printf "%s: the control plane or its gateways are called %s; take another name" $where $one.name) }}
{{- end }}
{{- if has (int $one.port) (list (int .root.Values.agent.httpPort) (int .root.Values.agent.grpcPort)) }}
{{- fail (printf "%s.port: the agent beside it listens on %d; take another one" $where (int $one.port)) }}
{{- end }}
{{- $least := int (add $one.drainSeconds $one.shutdownSeconds .root.Values.agent.shutdownSeconds 5) -}}
{{- if not $one.terminationGracePeriodSeconds }}
{{- $_ := set $one "terminationGracePeriodSeconds" $least }}
{{- else if lt (int $one.terminationGracePeriodSeconds) $least }}
{{- fail (printf "%s.terminationGracePeriodSeconds: %d is shorter than drainSeconds %d + shutdownSeconds %d + agent.shutdownSeconds %d + 5: Kubernetes would kill the engine in the middle of its drain. Say at least %d, or leave it out" $where (int $one.terminationGracePeriodSeconds) (int $one.drainSeconds) (int $one.shutdownSeconds) (int .root.Values.agent.shutdownSeconds) $least) }}
{{- end }}
{{- if not (or $.root.Values.tls.agents $.root.Values.insecure) }}
{{- fail "tls.agents: name a secret for the agents beside engines, or say insecure: true for those that speak plain text" }}
{{- end }}
{{- if and $one.tls.serverName (not $one.tls.secret) }}
{{- fail (printf "%s.tls.serverName: without tls.secret vLLM speaks no TLS" $where) }}
{{- end }}
{{- if and $one.tls.secret (not $one.tls.serverName) }}
{{- fail (printf "%s.tls.serverName: the agent asks by 127.0.0.1; say which DNS name of the certificate it is to look for" $where) }}
{{- end }}
{{- if and $one.readinessGate (not .root.Values.policies.readinessGates) }}
{{- fail (printf "%s.readinessGate: nobody would ever set it; policies.readinessGates is off" $where) }}
{{- end }}
{{- if and (eq (toString $one.maxSurge) "0") (eq (toString $one.maxUnavailable) "0") }}
{{- fail (printf "%s: with maxSurge and maxUnavailable both 0 no engine can ever be replaced" $where) }}
{{- end }}
{{- with $one.autoscaling }}
{{- if not (has .kind (list "none" "keda" "hpa")) }}
{{- fail (printf "%s.autoscaling.kind: %s; allowed: none, keda, hpa" $where .kind) }}
{{- end }}
{{- if ne .kind "none" }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "%s.autoscaling: minReplicas %d is above maxReplicas %d" $where (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- if lt (int .scaleDownStabilizationSeconds) (int .warmUpSeconds) }}
{{- fail (printf "%s.autoscaling.scaleDownStabilizationSeconds: %d is shorter than warmUpSeconds %d: engines would be taken away before those that were asked for last can serve" $where (int .scaleDownStabilizationSeconds) (int .warmUpSeconds)) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $one -}}
{{- end -}}

{{/* The labels that select one set. */}}
{{- define "switchgear.engineSelector" -}}
{{ include "switchgear.selector" (dict "root" .root "component" "engine") }}
switchgear.dev/engines: {{ .name }}
{{- end -}}

{{- define "switchgear.engineLabels" -}}
{{ include "switchgear.labels" (dict "root" .root "component" "engine") }}
switchgear.dev/engines: {{ .name }}
{{- end -}}

{{/* Where engines and agents listen: the ports that are said, and those of the engines here. For a NetworkPolicy. */}}
{{- define "switchgear.enginePorts" -}}
{{- $root := .root -}}
{{- $ports := list -}}
{{- range .said }}
{{- $ports = append $ports (int .) }}
{{- end }}
{{- range $root.Values.engines }}
{{- $one := include "switchgear.engine" (dict "root" $root "said" .) | fromYaml }}
{{- $ports = append $ports (int $one.port) }}
{{- end }}
{{- if and .agents $root.Values.engines }}
{{- $ports = append $ports (int $root.Values.agent.grpcPort) }}
{{- end }}
{{- range $ports | uniq }}
- {protocol: TCP, port: {{ . }}}
{{- end }}
{{- end -}}

{{/* Queries, each one number. Each replica of the control plane says the same of a pool: max, not sum. Where nobody
tells, a query has no result, and an autoscaler takes no engine away for what it does not know. Only the quantile is 0
when there is no traffic, of which it would be not a number; the engines have to be heard for that. */}}
{{- define "switchgear.queries" -}}
{{- $set := printf "namespace=%q,service=%q" .namespace .one.name -}}
{{- $pool := printf "pool=%q" (.one.autoscaling.pool | default .one.name) -}}
pressure: 'max(switchgear_pool_pressure_ratio{ {{- $pool -}} }) or max(switchgear_pool_utilization_ratio{ {{- $pool -}} })'
utilization: 'max(switchgear_pool_utilization_ratio{ {{- $pool -}} })'
queue: 'sum(vllm:num_requests_waiting{ {{- $set -}} })'
ttft_p99: '(histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{ {{- $set -}} }[2m]))) > 0) or (0 * sum(vllm:num_requests_waiting{ {{- $set -}} }))'
{{- end -}}

{{/* Up fast, but no second step before the engines of the first one serve; down by one, slowly. */}}
{{- define "switchgear.engineBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 30
  selectPolicy: Max
  policies:
  - {type: Pods, value: {{ .scaleUpEngines }}, periodSeconds: {{ .warmUpSeconds }}}
scaleDown:
  stabilizationWindowSeconds: {{ .scaleDownStabilizationSeconds }}
  selectPolicy: Min
  policies:
  - {type: Pods, value: 1, periodSeconds: {{ .scaleDownPeriodSeconds }}}
{{- end -}}
