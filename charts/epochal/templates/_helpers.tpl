{{/* The name of the chart, in labels. */}}
{{- define "epochal.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* What all names begin with; short enough that "-operator" and the like still fit into 63 characters. */}}
{{- define "epochal.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name)) }}
{{- $full | trunc 46 | trimSuffix "-" }}
{{- end }}

{{/* The name of a component's objects: (list . "catalog"). */}}
{{- define "epochal.componentName" -}}
{{- printf "%s-%s" (include "epochal.fullname" (index . 0)) (index . 1) }}
{{- end }}

{{/* The name of what belongs to no namespace, where releases of one name in two namespaces must not meet. */}}
{{- define "epochal.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "epochal.fullname" .) }}
{{- end }}

{{/* Chart and version, as a label. */}}
{{- define "epochal.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Labels by which the pods of a component are chosen; they never change: (list . "catalog"). */}}
{{- define "epochal.selectorLabels" -}}
app.kubernetes.io/name: {{ include "epochal.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of every object: (list . "catalog"). */}}
{{- define "epochal.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ include "epochal.chart" $root }}
{{ include "epochal.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: epochal
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of an object: (list . "catalog" NAME [ANNOTATIONS [LABELS]]). */}}
{{- define "epochal.metadata" -}}
{{- $root := index . 0 -}}
{{- $annotations := merge (dict) (gt (len .) 3 | ternary (slice . 3 | first) dict) $root.Values.commonAnnotations -}}
{{- $labels := merge (dict) (include "epochal.labels" . | fromYaml) (gt (len .) 4 | ternary (slice . 3 | last) dict) -}}
name: {{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The metadata of an object of no namespace: (list . "sidecar" NAME). */}}
{{- define "epochal.clusterMetadata" -}}
name: {{ index . 2 }}
labels:
  {{- include "epochal.labels" . | nindent 2 }}
{{- with (index . 0).Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* An image's name, digest before tag: (list . .Values.catalog.image). */}}
{{- define "epochal.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{- with $root.Values.image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}
{{- else }}:{{ $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The service account of a component: (list . "catalog" .Values.catalog.serviceAccount). */}}
{{- define "epochal.serviceAccountName" -}}
{{- $account := index . 2 -}}
{{- if $account.create }}{{ $account.name | default (include "epochal.componentName" .) }}
{{- else }}{{ $account.name | default "default" }}{{ end }}
{{- end }}

{{/* Where the catalog is. */}}
{{- define "epochal.catalogUrl" -}}
http://{{ include "epochal.componentName" (list . "catalog") }}.{{ .Release.Namespace }}.svc:8700
{{- end }}

{{/* OpenTelemetry's environment as a map, {} where nothing is traced. */}}
{{- define "epochal.tracing" -}}
{{- $endpoint := dict }}{{ with .Values.tracing.endpoint }}{{ $_ := set $endpoint "OTEL_EXPORTER_OTLP_ENDPOINT" . }}{{ end -}}
{{- merge $endpoint .Values.tracing.env | toJson }}
{{- end }}

{{/* More environment of publishers, by name as JSON. */}}
{{- define "epochal.publisherEnv" -}}
{{- $env := include "epochal.tracing" . | fromJson -}}
{{- with .Values.publishers.webhookTargets }}{{ $_ := set $env "EPOCHAL_PUBLISHER_WEBHOOK_TARGETS" (join "," .) }}{{ end -}}
{{- with .Values.publishers.corsOrigins }}{{ $_ := set $env "EPOCHAL_PUBLISHER_CORS_ORIGINS" (join "," .) }}{{ end -}}
{{- $env | toJson }}
{{- end }}

{{/* More environment of a container, that of tracing before it; what it says itself wins: (list . .Values.catalog.extraEnv). */}}
{{- define "epochal.moreEnv" -}}
{{- $own := index . 1 -}}
{{- range $name, $value := include "epochal.tracing" (index . 0) | fromJson }}
{{- $said := false }}{{ range $own }}{{ if eq .name $name }}{{ $said = true }}{{ end }}{{ end }}
{{- if not $said }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- with $own }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What every pod of the chart has of the restricted Pod Security Standard. */}}
{{- define "epochal.podSecurity" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- if .Values.fixedUser }}
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every container of the chart has of it. */}}
{{- define "epochal.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where a pod may run: a component's values. */}}
{{- define "epochal.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A pod's metadata: (list . "catalog" .Values.catalog). The version is no label here: it would roll pods for nothing. */}}
{{- define "epochal.podMetadata" -}}
{{- $root := index . 0 }}{{ $values := index . 2 -}}
labels:
  {{- include "epochal.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/part-of: epochal
  {{- with merge (dict) $values.podLabels $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) $values.podAnnotations $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Who may read metrics: those named, and namespaces with the label that publishers know. */}}
{{- define "epochal.monitoring" -}}
{{- $labelled := dict "namespaceSelector" (dict "matchLabels" (dict "epochal.dev/monitoring" "true")) -}}
{{- toYaml (append .Values.networkPolicy.monitoring $labelled) }}
{{- end }}

{{/* The namespace of the Stream that `helm test` uses. */}}
{{- define "epochal.testNamespace" -}}
{{- if and .Values.watchNamespaces (not (has .Release.Namespace .Values.watchNamespaces)) }}{{ first .Values.watchNamespaces }}
{{- else }}{{ .Release.Namespace }}{{ end }}
{{- end }}

{{/* The names in a list of references, by comma. */}}
{{- define "epochal.names" -}}
{{- range $at, $each := . }}{{ if $at }},{{ end }}{{ $each.name }}{{ end }}
{{- end }}

{{/* What the operator does in one namespace, or in all. */}}
{{- define "epochal.operatorRules" -}}
# Streams are the users': the operator reads them, notes its finalizer, and tells how they are.
- apiGroups: [epochal.dev]
  resources: [streams]
  verbs: [get, list, watch, patch]
# Relays are the users', too, but for those that spec.relays of a Stream asks for.
- apiGroups: [epochal.dev]
  resources: [relays]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [epochal.dev]
  resources: [streams/status, relays/status]
  verbs: [patch]
# To own children of a Stream or a Relay such that it goes after them.
- apiGroups: [epochal.dev]
  resources: [streams/finalizers, relays/finalizers]
  verbs: [update]
# The children.
- apiGroups: [""]
  resources: [pods, services, persistentvolumeclaims, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# The operator reports by events on the Stream or Relay; why a claim has no volume is shown only in events.
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
{{- end }}
