{{/* The pod of one role. */}}
{{- define "chex-node.pod" -}}
{{- $values := .root.Values -}}
{{- $on_gpu := include "chex-node.on-gpu" . -}}
{{- $reads := include "chex-node.has" (dict "role" .role "part" "reads") -}}
{{- $is_split := ne .role "node" -}}
{{- $listens := include "chex-node.has" (dict "role" .role "part" "listens") -}}
{{- $placing := ternary $values (get $values .role | default dict) (not (empty $reads)) -}}
metadata:
  labels:
    {{- include "chex-node.role-labels" . | nindent 4 }}
  annotations:
    checksum/settings: {{ include "chex-node.settings" .root | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with include "chex-node.account" .root }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  # It finishes the steps in hand, at most 20 s, after the pause of preStop.
  terminationGracePeriodSeconds: {{ add 40 (ternary $values.listener.drainSeconds 0 (not (empty $listens))) }}
  {{- if and $on_gpu $values.gpu.runtimeClass }}
  runtimeClassName: {{ $values.gpu.runtimeClass }}
  {{- end }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: node
      image: {{ include "chex-node.image" . }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      {{- if $is_split }}
      args: [serve, /etc/chex-node/node.toml, --only, {{ .role }}, --executor, $(POD_NAME)]
      {{- end }}
      env:
        - { name: ORT_DISABLE_TELEMETRY, value: "1" }
        {{- if $is_split }}
        - name: POD_NAME # the same again after a restart of a StatefulSet's pod: it goes on with its own work
          valueFrom: { fieldRef: { fieldPath: metadata.name } }
        - name: PGPASSWORD
          valueFrom: { secretKeyRef: { name: {{ $values.database.secret }}, key: {{ $values.database.secretKey }} } }
        {{- end }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if and $listens $values.listener.drainSeconds }}
      lifecycle: # senders get to another pod before this one refuses them
        preStop: { exec: { command: [sleep, {{ $values.listener.drainSeconds | quote }}] } }
      {{- end }}
      securityContext:
        readOnlyRootFilesystem: true
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
      ports:
        {{- if $listens }}
        - { name: dicom, containerPort: 11112 }
        {{- if $values.settings.listener.tls }}
        - { name: dicom-tls, containerPort: 2762 }
        {{- end }}
        {{- if $values.settings.orders }}
        - { name: orders, containerPort: 2575 }
        {{- end }}
        {{- end }}
        - { name: http, containerPort: 8080 }
      {{- include "chex-node.probes" (dict "minutes" (ternary 30 5 (not (empty $on_gpu))) "scheme" (include "chex-node.scheme" .root)) | nindent 6 }}
      resources:
        {{- $resources := deepCopy (ternary (get $values .role | default dict).resources $values.resources $is_split) }}
        {{- if $on_gpu }}
        {{- $_ := mergeOverwrite $resources (dict "limits" (dict $values.gpu.resource $values.gpu.count)) }}
        {{- end }}
        {{- include "chex-node.holds-two-objects" (dict "root" .root "role" .role "limit" (dig "limits" "memory" "" $resources)) }}
        {{- toYaml $resources | nindent 8 }}
      volumeMounts:
        - { name: storage, mountPath: /var/lib/chex-node }
        - { name: settings, mountPath: /etc/chex-node, readOnly: true }
        - { name: tmp, mountPath: /tmp }
        {{- if $on_gpu }}
        - { name: engines, mountPath: /var/lib/chex-node/engines }
        {{- end }}
        {{- if and $reads $values.model.existingClaim }}
        - { name: model, mountPath: /models, readOnly: true }
        {{- end }}
        {{- range $values.tls.secrets }}
        - { name: tls-{{ . }}, mountPath: /etc/chex-tls/{{ . }}, readOnly: true }
        {{- end }}
  volumes:
    - name: storage
      persistentVolumeClaim:
        claimName: {{ $values.storage.existingClaim | default (include "chex-node.fullname" .root) }}
    - name: settings
      configMap:
        name: {{ include "chex-node.fullname" .root }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ $values.tmpSize }}
    {{- if and $reads $values.model.existingClaim }}
    - name: model
      persistentVolumeClaim:
        claimName: {{ $values.model.existingClaim }}
        readOnly: true
    {{- end }}
    {{- range $values.tls.secrets }}
    - name: tls-{{ . }}
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
  {{- range $key := list "nodeSelector" "affinity" "tolerations" }}
  {{- with get $placing $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- if $placing.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml $placing.topologySpreadConstraints | nindent 4 }}
  {{- else if $is_split }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "chex-node.role-selector" . | nindent 10 }}
  {{- end }}
{{- end -}}

{{/* Probes on HTTP only. /live answers before the model is open; /ready waits for it, minutes while TensorRT builds engines. */}}
{{- define "chex-node.probes" -}}
startupProbe:
  httpGet: { path: /live, port: http, scheme: {{ .scheme }} }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: {{ mul .minutes 6 }}
livenessProbe:
  httpGet: { path: /live, port: http, scheme: {{ .scheme }} }
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: { path: /ready, port: http, scheme: {{ .scheme }} }
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/*
Refuses a memory limit below two of the largest objects: one as it was received, one as its picture. Every part shows
pictures of films. An object may have 2048 MiB where the settings say nothing (node/config.py).
*/}}
{{- define "chex-node.holds-two-objects" -}}
{{- $mib := int64 (.root.Values.settings.listener.max_object_mib | default 2048) -}}
{{- $where := ternary "resources" (printf "%s.resources" .role) (eq .role "node") -}}
{{- with .limit -}}
{{- if gt (mulf $mib 2 1048576) (include "chex-node.bytes" . | float64) -}}
{{- fail (printf "settings.listener.max_object_mib: two objects of %d MiB do not fit into %s.limits.memory (%s): lower the one or raise the other" $mib $where (toString .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The bytes of an amount of memory, as Kubernetes writes it: 8Gi, 8G, 8589934592. */}}
{{- define "chex-node.bytes" -}}
{{- $units := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $units = merge $units (dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976) -}}
{{- $text := kindIs "string" . | ternary . (toString (int64 .)) -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[A-Za-z]+$" $text) | default 1) -}}
{{- end -}}
