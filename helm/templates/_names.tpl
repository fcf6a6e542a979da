{{/* The release's own name, short enough for what is appended to it (a label holds 63 characters). */}}
{{- define "chex-node.fullname" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What finds the pod. The name is also Prometheus's job, for which the alerts ask: every release has the same. */}}
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

{{- define "chex-node.image" -}}
{{- $own := printf "%s-%s" .Chart.AppVersion (ternary "gpu" "cpu" .Values.gpu.enabled) -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default $own }}
{{- end -}}
