{{/* One set of engines with defaults applied, as YAML; fails on invalid values. */}}
{{- define "switchgear.engine" -}}
{{- $one := mergeOverwrite (deepCopy .root.Values.engineDefaults) (deepCopy .given) -}}
{{- $where := printf "engines[%s]" $one.name -}}
{{- if not $one.name }}
{{- fail "engines: name is required for each" }}
{{- end }}
{{- if not $one.model }}
{{- fail (printf "%s.model: required; set the model that vLLM serves" $where) }}
{{- end }}
{{- $fullname := include "switchgear.fullname" .root -}}
{{- if has $one.name (list $fullname (printf "%s-gateway" $fullname)) }}
{{- fail (printf "%s: name %s is used by the control plane or its gateways; choose another" $where $one.name) }}
{{- end }}
{{- if has (int $one.port) (list (int .root.Values.agent.httpPort) (int .root.Values.agent.grpcPort)) }}
{{- fail (printf "%s.port: %d is a port of the agent in the same pod; choose another" $where (int $one.port)) }}
{{- end }}
{{- $least := int (add $one.drainSeconds $one.shutdownSeconds .root.Values.agent.shutdownSeconds 5) -}}
{{- if not $one.terminationGracePeriodSeconds }}
{{- $_ := set $one "terminationGracePeriodSeconds" $least }}
{{- else if lt (int $one.terminationGracePeriodSeconds) $least }}
{{- fail (printf "%s.terminationGracePeriodSeconds: %d is shorter than drainSeconds %d + shutdownSeconds %d + agent.shutdownSeconds %d + 5: Kubernetes would kill the engine during its drain; set at least %d, or remove it" $where (int $one.terminationGracePeriodSeconds) (int $one.drainSeconds) (int $one.shutdownSeconds) (int .root.Values.agent.shutdownSeconds) $least) }}
{{- end }}
{{- if not (or $.root.Values.tls.agents $.root.Values.insecure) }}
{{- fail "tls.agents: set a secret for the agents of engines; for a trial set insecure=true; one of the two is required" }}
{{- end }}
{{- if and $one.tls.serverName (not $one.tls.secret) }}
{{- fail (printf "%s.tls.serverName: needs tls.secret; without it vLLM serves plain text" $where) }}
{{- end }}
{{- if and $one.tls.secret (not $one.tls.serverName) }}
{{- fail (printf "%s.tls.serverName: required; the agent connects to 127.0.0.1 and verifies this DNS name of the certificate" $where) }}
{{- end }}
{{- if and $one.readinessGate (not .root.Values.policies.readinessGates) }}
{{- fail (printf "%s.readinessGate: pods would never be ready, because policies.readinessGates is off; set it to true" $where) }}
{{- end }}
{{- if and $one.gpus (mod (int $one.gpus) (int $one.dataParallel)) }}
{{- fail (printf "%s.dataParallel: %d ranks cannot share %d gpus evenly; set gpus to a multiple" $where (int $one.dataParallel) (int $one.gpus)) }}
{{- end }}
{{- if mod (int $one.slots) (int $one.dataParallel) }}
{{- fail (printf "%s.dataParallel: %d ranks cannot share %d slots evenly; set slots to a multiple" $where (int $one.dataParallel) (int $one.slots)) }}
{{- end }}
{{- if and (eq (toString $one.maxSurge) "0") (eq (toString $one.maxUnavailable) "0") }}
{{- fail (printf "%s: maxSurge and maxUnavailable are both 0, so no engine can be replaced; raise one" $where) }}
{{- end }}
{{- with $one.autoscaling }}
{{- if not (has .kind (list "none" "keda" "hpa")) }}
{{- fail (printf "%s.autoscaling.kind: unknown value %s; use none, keda or hpa" $where .kind) }}
{{- end }}
{{- if ne .kind "none" }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "%s.autoscaling: minReplicas %d exceeds maxReplicas %d" $where (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- if lt (int .scaleDownStabilizationSeconds) (int .warmUpSeconds) }}
{{- fail (printf "%s.autoscaling.scaleDownStabilizationSeconds: %d is shorter than warmUpSeconds %d: engines would be removed before new ones can serve; set at least warmUpSeconds" $where (int .scaleDownStabilizationSeconds) (int .warmUpSeconds)) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $one -}}
{{- end -}}

{{/* Selector labels of one set. */}}
{{- define "switchgear.engineSelector" -}}
{{ include "switchgear.selector" (dict "root" .root "component" "engine") }}
switchgear.dev/engines: {{ .name }}
{{- end -}}

{{- define "switchgear.engineLabels" -}}
{{ include "switchgear.labels" (dict "root" .root "component" "engine") }}
switchgear.dev/engines: {{ .name }}
{{- end -}}

{{/* Ports of engines and agents for a NetworkPolicy: those given, plus those of `engines`. */}}
{{- define "switchgear.enginePorts" -}}
{{- $root := .root -}}
{{- $ports := list -}}
{{- range .given }}
{{- $ports = append $ports (int .) }}
{{- end }}
{{- range $root.Values.engines }}
{{- $one := include "switchgear.engine" (dict "root" $root "given" .) | fromYaml }}
{{- $ports = append $ports (int $one.port) }}
{{- end }}
{{- if and .agents $root.Values.engines }}
{{- $ports = append $ports (int $root.Values.agent.grpcPort) }}
{{- end }}
{{- range $ports | uniq }}
- {protocol: TCP, port: {{ . }}}
{{- end }}
{{- end -}}

{{/* Queries with one number each. All replicas of the control plane report the same value of a pool: max, not sum.
Without data a query is empty, and the autoscaler removes no engine. The quantile is NaN without traffic, so it is 0
then, as long as engines are scraped. */}}
{{- define "switchgear.queries" -}}
{{- $set := printf "namespace=%q,service=%q" .namespace .one.name -}}
{{- $pool := printf "pool=%q" (.one.autoscaling.pool | default .one.name) -}}
pressure: 'max(switchgear_pool_pressure_ratio{ {{- $pool -}} }) or max(switchgear_pool_utilization_ratio{ {{- $pool -}} })'
utilization: 'max(switchgear_pool_utilization_ratio{ {{- $pool -}} })'
queue: 'sum(vllm:num_requests_waiting{ {{- $set -}} })'
ttft_p99: '(histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{ {{- $set -}} }[2m]))) > 0) or (0 * sum(vllm:num_requests_waiting{ {{- $set -}} }))'
{{- end -}}

{{/* Up fast, but the next step waits until new engines serve; down slowly, one by one. */}}
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
