{{/* node.toml. A scalar or a list of texts is the same in JSON and TOML. */}}
{{- define "chex-node.settings" -}}
{{- $model := "models/weights/phantom" -}}
{{- if .Values.model.existingClaim }}{{ $model = printf "/models/%s" .Values.model.directory }}{{ end -}}
{{- $own := dict
  "listener" (dict "host" "0.0.0.0" "port" 11112)
  "http" (dict "host" "0.0.0.0" "port" 8080)
  "storage" (dict "directory" "/var/lib/chex-node")
  "model" (dict "directory" $model)
-}}
{{- if .Values.settings.orders }}{{ $_ := set $own "orders" (dict "host" "0.0.0.0" "port" 2575) }}{{ end -}}
{{- range $table, $keys := mergeOverwrite (deepCopy (omit .Values.settings "destinations")) $own }}
[{{ $table }}]
{{- include "chex-node.keys" (omit $keys "callers") }}
{{- range $keys.callers }}

[[{{ $table }}.callers]]
{{- include "chex-node.keys" . }}
{{- end }}
{{ end -}}
{{- range .Values.settings.destinations }}
[[destinations]]
{{- include "chex-node.keys" (omit . "tls") }}
{{- with .tls }}

[destinations.tls]
{{- include "chex-node.keys" . }}
{{- end }}
{{ end -}}
{{- end -}}

{{- define "chex-node.keys" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ toJson $value }}
{{- end -}}
{{- end -}}
