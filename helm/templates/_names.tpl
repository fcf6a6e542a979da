{{/* The release's own name, short enough for what is appended to it (a label holds 63 characters). */}}
{{- define "chex-node.fullname" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What finds every pod. The name is also Prometheus's job, for which the alerts ask: every release has the same. */}}
{{- define "chex-node.selector" -}}
app.kubernetes.io/name: chex-node
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "chex-node.labels" -}}
{{ include "chex-node.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/*
The kinds of pods, as a list: one that does everything, or one for each part of the work. Each is known by its label
app.kubernetes.io/component.
*/}}
{{- define "chex-node.roles" -}}
{{- ternary (list "listener" "worker" "sender") (list "node") (eq .Values.mode "split") | toJson -}}
{{- end -}}

{{/* From here on the argument is a dict: root, and role, one of chex-node.roles. */}}
{{- define "chex-node.role-name" -}}
{{- include "chex-node.fullname" .root }}{{ if ne .role "node" }}-{{ .role }}{{ end -}}
{{- end -}}

{{- define "chex-node.role-selector" -}}
{{ include "chex-node.selector" .root }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "chex-node.role-labels" -}}
{{ include "chex-node.labels" .root }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{/* Whether pods of this role have the part: "listens", "reads" or "sends"; empty where not. */}}
{{- define "chex-node.has" -}}
{{- $parts := dict "node" (list "listens" "reads" "sends") "listener" (list "listens") "worker" (list "reads") "sender" (list "sends") -}}
{{- if has .part (get $parts .role) }}yes{{ end -}}
{{- end -}}

{{- define "chex-node.on-gpu" -}}
{{- if and .root.Values.gpu.enabled (include "chex-node.has" (dict "role" .role "part" "reads")) }}yes{{ end -}}
{{- end -}}

{{- define "chex-node.image" -}}
{{- $own := printf "%s-%s" .root.Chart.AppVersion (ternary "gpu" "cpu" (not (empty (include "chex-node.on-gpu" .)))) -}}
{{ .root.Values.image.repository }}
{{- if .root.Values.image.digest }}@{{ .root.Values.image.digest }}{{ else }}:{{ .root.Values.image.tag | default $own }}{{ end -}}
{{- end -}}

{{/* The account of the pods; empty: the namespace's own. */}}
{{- define "chex-node.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "chex-node.fullname" .) "" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* The pod of `helm test`; its name differs from the node's, by which Services find their pods. */}}
{{- define "chex-node.test-labels" -}}
app.kubernetes.io/name: chex-node-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* How probes and Prometheus speak to the port for HTTP. */}}
{{- define "chex-node.scheme" -}}
{{- if (.Values.settings.http | default dict).tls }}HTTPS{{ else }}HTTP{{ end -}}
{{- end -}}
