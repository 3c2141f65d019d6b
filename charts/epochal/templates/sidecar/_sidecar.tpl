{{/* The container that is injected, as in spark/kubernetes/*-sidecar.yaml. Annotations of the pod change it: policy.yaml. */}}
{{- define "epochal.sidecar" -}}
name: epochal-sidecar
image: {{ include "epochal.image" (list . .Values.publishers.image) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [sidecar]
restartPolicy: Always
env:
  - name: EPOCHAL_CATALOG
    value: {{ include "epochal.catalogUrl" . }}
  - name: EPOCHAL_SIDECAR_LISTEN
    value: ipc:///run/epochal/ingest.sock
  - name: EPOCHAL_SIDECAR_HOST
    value: {{ .Values.listen | quote }}
  - name: EPOCHAL_SIDECAR_HTTP_PORT
    value: "8705"
  - name: EPOCHAL_POD_UID
    valueFrom: {fieldRef: {fieldPath: metadata.uid}}
  {{- with include "epochal.moreEnv" (list . .Values.sidecar.extraEnv) | trim }}
  {{- nindent 2 . }}
  {{- end }}
ports:
  - {name: epochal-sidecar, containerPort: 8705}
startupProbe:
  httpGet: {path: /readyz, port: epochal-sidecar}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: epochal-sidecar}
  periodSeconds: 10
  failureThreshold: 6
resources:
  {{- toYaml (merge (dict "requests" dict "limits" dict) .Values.sidecar.resources) | nindent 2 }}
securityContext:
  {{- include "epochal.containerSecurity" . | nindent 2 }}
  {{- if .Values.fixedUser }}
  runAsUser: 10001
  runAsGroup: 10001
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: epochal-sidecar, mountPath: /run/epochal}
{{- end }}

{{/* What the containers of the pod learn, beside the mount. What a container says itself wins. */}}
{{- define "epochal.sidecarClient" -}}
env:
  - name: EPOCHAL_SIDECAR
    value: ipc:///run/epochal/ingest.sock
  - name: EPOCHAL_SIDECAR_REQUIRED
    value: "true"
  - name: EPOCHAL_CATALOG
    value: {{ include "epochal.catalogUrl" . }}
  - name: EPOCHAL_POD_UID
    valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{- end }}

{{/* A value as a CEL literal. Kubernetes wants lists and maps of one type: dyn() makes it one. */}}
{{- define "epochal.cel" -}}
{{- if kindIs "map" . -}}
dyn({ {{- range $at, $name := keys . | sortAlpha }}{{ if $at }}, {{ end }}{{ toJson $name }}: {{ include "epochal.cel" (index $ $name) }}{{ end -}} })
{{- else if kindIs "slice" . -}}
dyn([ {{- range $at, $each := . }}{{ if $at }}, {{ end }}{{ include "epochal.cel" $each }}{{ end -}} ])
{{- else -}}
dyn({{ toJson . }})
{{- end -}}
{{- end }}

{{/* Of a binding: where pods get the sidecar. */}}
{{- define "epochal.sidecarNamespaces" -}}
{{- with .Values.watchNamespaces -}}
matchResources:
  namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ toJson . }}
{{- end }}
{{- end }}
