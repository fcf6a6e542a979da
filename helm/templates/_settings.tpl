{{/* node.toml, the same for every pod. A scalar or a list of texts is the same in JSON and TOML. */}}
{{- define "chex-node.settings" -}}
{{- $model := "models/weights/phantom" -}}
{{- if .Values.model.existingClaim }}{{ $model = printf "/models/%s" .Values.model.directory }}{{ end -}}
{{- $own := dict
  "listener" (dict "host" "0.0.0.0" "port" 11112)
  "http" (dict "host" "0.0.0.0" "port" 8080)
  "storage" (dict "directory" "/var/lib/chex-node" "database_url" (include "chex-node.database" .))
  "model" (dict "directory" $model)
-}}
{{- with .Values.pages.host }}{{ $_ := set $own.http "hosts" (append (dig "http" "hosts" list $.Values.settings) . | uniq) }}{{ end -}}
{{- if .Values.settings.listener.tls }}{{ $_ := set $own.listener "tls" (dict "port" 2762) }}{{ end -}}
{{- if .Values.settings.orders }}{{ $_ := set $own "orders" (dict "host" "0.0.0.0" "port" 2575) }}{{ end -}}
{{- range $table, $keys := mergeOverwrite (deepCopy (omit .Values.settings "destinations" "notify")) $own }}
[{{ $table }}]
{{- include "chex-node.keys" (omit $keys "callers" "tls" "webhook" "oidc") }}
{{- include "chex-node.tls" (dict "table" $table "keys" $keys.tls) }}
{{- with $keys.oidc }}

[http.oidc]
{{- include "chex-node.keys" . }}
{{- end }}
{{- with $keys.webhook }}

[alerts.webhook]
{{- include "chex-node.keys" . }}
{{- end }}
{{- range $keys.callers }}

[[{{ $table }}.callers]]
{{- range .hosts }}{{ include "chex-node.check-network" . }}{{ end }}
{{- include "chex-node.keys" . }}
{{- end }}
{{ end -}}
{{- range .Values.settings.notify }}
[[notify]]
{{- include "chex-node.keys" . }}
{{ end -}}
{{- range .Values.settings.destinations }}
[[destinations]]
{{- include "chex-node.keys" (omit . "tls") }}
{{- include "chex-node.tls" (dict "table" "destinations" "keys" .tls) }}
{{ end -}}
{{- end -}}

{{- define "chex-node.keys" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ toJson $value }}
{{- end -}}
{{- end -}}

{{/* Refuses an IPv4 network with bits of a host, as the node does; that its last bytes are 0 is seen by the schema. */}}
{{- define "chex-node.check-network" -}}
{{- $length := int (regexFind "[0-9]+$" .) -}}
{{- if and (regexMatch "^[0-9.]+/[0-9]+$" .) (lt $length 32) -}}
{{- $byte := index (splitList "." (regexFind "^[0-9.]+" .)) (int (div $length 8)) | int -}}
{{- if mod $byte (index (list 256 128 64 32 16 8 4 2) (int (mod $length 8))) -}}
{{- fail (printf "settings.listener.callers: %s is an address and a network; write the first address of the network" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chex-node.tls" -}}
{{- if .keys }}

[{{ .table }}.tls]
{{- include "chex-node.keys" .keys }}
{{- end -}}
{{- end -}}

{{/* The address of PostgreSQL without its password: that comes as PGPASSWORD, which PostgreSQL's own library reads. */}}
{{- define "chex-node.database" -}}
{{- if eq .Values.mode "split" -}}
{{- with .Values.database -}}
{{- printf "postgresql://%s@%s:%d/%s?sslmode=%s" .user .host (int .port) .name .sslmode -}}
{{- with .sslRootCert }}&sslrootcert={{ . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
