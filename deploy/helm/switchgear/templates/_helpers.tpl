{{- define "switchgear.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Selector labels. Never change them: a Deployment's selector is immutable. */}}
{{- define "switchgear.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "switchgear.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{ include "switchgear.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "switchgear.controlPlaneAccount" -}}
{{- $account := .Values.controlPlane.serviceAccount -}}
{{- $account.name | default (ternary (include "switchgear.fullname" .) "default" $account.create) -}}
{{- end -}}

{{- define "switchgear.gatewayAccount" -}}
{{- $account := .Values.gateway.serviceAccount -}}
{{- $account.name | default (ternary (printf "%s-gateway" (include "switchgear.fullname" .)) "default" $account.create) -}}
{{- end -}}

{{- define "switchgear.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .default }}
{{- end -}}
{{- end -}}

{{- define "switchgear.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .uid }}
runAsGroup: {{ .uid }}
fsGroup: {{ .uid }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Secret volume for a pod with podSecurity: owned by root, readable by the pod's group only. */}}
{{- define "switchgear.secret" -}}
{secretName: {{ . }}, defaultMode: 0440}
{{- end -}}

{{- define "switchgear.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Spread replicas over zones and nodes, per revision. */}}
{{- define "switchgear.spread" -}}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  matchLabelKeys: [pod-template-hash]
  labelSelector:
    matchLabels:
      {{- include "switchgear.selector" $ | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "switchgear.dns" -}}
- ports:
  - {protocol: UDP, port: 53}
  - {protocol: TCP, port: 53}
{{- end -}}

{{/* Rights per watched namespace: list and watch, plus those for status, Events and readiness gates. */}}
{{- define "switchgear.rules" -}}
- apiGroups: [switchgear.dev]
  resources: [enginepools, modelroutes, resiliencepolicies]
  verbs: [{{ ternary "get, " "" .Values.policies.writeStatus }}list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [{{ ternary "get, " "" .Values.policies.readinessGates }}list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- if .Values.policies.writeStatus }}
- apiGroups: [switchgear.dev]
  resources: [enginepools/status, modelroutes/status, resiliencepolicies/status]
  verbs: [update]
- apiGroups: [""]
  resources: [events]
  verbs: [create, get, patch]
{{- end }}
{{- if .Values.policies.readinessGates }}
{{- if not .Values.policies.writeStatus }}
{{- fail "policies.readinessGates: needs policies.writeStatus, which is off; set it to true" }}
{{- end }}
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{/* DNS name in agents' certificates; empty without certificates. */}}
{{- define "switchgear.agentName" -}}
{{- if .Values.tls.agentName -}}
{{- .Values.tls.agentName -}}
{{- else if .Values.tls.agents -}}
{{- include "switchgear.fullname" . }}-agent.{{ .Release.Namespace }}.svc
{{- end -}}
{{- end -}}
