{{/* labels of all objects of a component: (dict "root" $ "component" "gateway") */}}
{{- define "isthmus.labels" -}}
{{ include "isthmus.podLabels" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* those of its pods: a new version of the chart alone restarts nothing */}}
{{- define "isthmus.podLabels" -}}
{{ include "isthmus.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: isthmus
{{- end }}

{{/* by what a workload finds its pods: never changes */}}
{{- define "isthmus.selector" -}}
app.kubernetes.io/name: isthmus-{{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "isthmus.image" -}}
image: {{ printf "%s/isthmus-%s:%s" (trimSuffix "/" .root.Values.image.registry) .component (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}

{{- define "isthmus.pullSecrets" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* what gateway and controller may do to their node: nothing */}}
{{- define "isthmus.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "isthmus.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* nine tenths of the container's memory limit: the garbage collector works harder from there on, and
     what it does not count (the program itself, socket buffers, the kernel's part) has room. A limit that is not
     written in Mi or Gi, or none, is taken as the kubelet has it: (dict "limit" "512Mi" "container" "gateway") */}}
{{- define "isthmus.memoryLimit" -}}
{{- $limit := .limit | default "" | toString -}}
- name: GOMEMLIMIT
{{- if regexMatch "^[0-9]+[MG]i$" $limit }}
  value: {{ printf "%dMiB" (div (mul (regexFind "^[0-9]+" $limit | int64) (ternary 1024 1 (hasSuffix "Gi" $limit)) 9) 10) }}
{{- else }}
  valueFrom: {resourceFieldRef: {containerName: {{ .container }}, resource: limits.memory}}
{{- end }}
{{- end }}

{{/* the kubelet's probes: of the operations port, by number, as a node proxy declares none */}}
{{- define "isthmus.probes" -}}
startupProbe:
  httpGet: {path: /healthz/live, port: 15020}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz/live, port: 15020}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /healthz/ready, port: 15020}
  periodSeconds: 2
  timeoutSeconds: 2
{{- end }}

{{/* the identity of a process: its own service account, by the controller's CA */}}
{{- define "isthmus.identity" -}}
source: istio
address: isthmus-controller.{{ .Release.Namespace }}.svc:15012
root: /etc/isthmus/root/bundle.pem
bundle: /etc/isthmus/root/bundle.pem
token: /var/run/secrets/isthmus/ca-token
{{- end }}

{{- define "isthmus.common" -}}
network: {{ required "network: name this cluster's network, as other clusters are to know it: --set network=west" .Values.network | quote }}
trustDomain: {{ .Values.trustDomain }}
operations: {address: "0.0.0.0:15020"}
log: {level: {{ .Values.log.level }}, format: json}
{{- end }}

{{- define "isthmus.gatewayConfig" -}}
{{ include "isthmus.common" . }}
listen: 0.0.0.0:15008
serviceAccount: {{ .Release.Namespace }}/gateway
nodeServiceAccount: {{ .Release.Namespace }}/nodeproxy
controllerServiceAccount: {{ .Release.Namespace }}/controller
discovery:
  kube:
    inCluster: true
    systemNamespace: {{ .Values.systemNamespace }}
    rootNamespace: {{ .Values.rootNamespace }}
    cache: /var/lib/isthmus/cluster
    keyCache: /var/lib/isthmus/keys
    gateways: {{ .Release.Namespace }}/isthmus-gateway-nodes
address:
  service: {{ .Release.Namespace }}/isthmus-gateway
  {{- if and (include "isthmus.servesQUIC" .) (eq .Values.gateway.service.quic "separate") }}
  quicService: {{ .Release.Namespace }}/isthmus-gateway-quic
  {{- end }}
{{- with .Values.controller.config.vips }}
vips: {{- toYaml . | nindent 2 }}
{{- end }}
identity:
  {{- include "isthmus.identity" . | nindent 2 }}
federation:
  keys: /etc/isthmus/network
  networks: /etc/isthmus/networks/networks.yaml
timeouts:
  lameDuck: {{ .Values.gateway.lameDuckSeconds }}s
  drain: {{ .Values.gateway.drainSeconds }}s
{{- end }}

{{- define "isthmus.nodeproxyConfig" -}}
{{ include "isthmus.common" . }}
serviceAccount: {{ .Release.Namespace }}/nodeproxy
discovery:
  gateways: ["isthmus-gateway-nodes.{{ .Release.Namespace }}.svc:15008"]
  gatewayServiceAccount: {{ .Release.Namespace }}/gateway
  cache: /var/lib/isthmus/discovery.cache
identity:
  {{- include "isthmus.identity" . | nindent 2 }}
federation:
  networks: /etc/isthmus/networks/networks.yaml
  token: /var/run/secrets/isthmus/gateway-token
timeouts:
  drain: {{ .Values.nodeProxy.drainSeconds }}s
{{- with .Values.nodeProxy.capture.scope }}
{{- if ne . "off" }}
capture:
  scope: {{ . }}
  proc: /host/proc
  {{- if and $.Values.nodeProxy.cni.enabled (ne . "release") }}
  cniSocket: {{ $.Values.nodeProxy.cni.socketDir }}/cni.sock
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* (dict "root" $ "template" "isthmus.gatewayConfig" "over" .Values.gateway.config) */}}
{{- define "isthmus.config" -}}
{{ toYaml (mergeOverwrite (include .template .root | fromYaml) (deepCopy .over)) }}
{{- end }}

{{/* a token of the pod's own service account, for one audience, renewed by the kubelet */}}
{{- define "isthmus.token" -}}
- serviceAccountToken: {path: {{ .path }}, audience: {{ .audience }}, expirationSeconds: 3600}
{{- end }}

{{- define "isthmus.controllerConfig" -}}
{{ include "isthmus.common" . }}
namespace: {{ .Release.Namespace }}
serviceAccount: {{ .Release.Namespace }}/controller
nodeServiceAccount: {{ .Release.Namespace }}/nodeproxy
gateways: ["isthmus-gateway-nodes.{{ .Release.Namespace }}.svc:15008"]
gatewayServiceAccount: {{ .Release.Namespace }}/gateway
{{- with .Values.controller.startupTaint }}
startupTaint: {{ . }}
{{- end }}
discovery:
  kube:
    inCluster: true
    systemNamespace: {{ .Values.systemNamespace }}
    rootNamespace: {{ .Values.rootNamespace }}
identity: {source: ca, dir: /etc/isthmus/ca}
ca: {address: "0.0.0.0:15012", keys: /var/lib/isthmus/keys.json}
federation:
  networks: /etc/isthmus/networks/networks.yaml
  configMap: {{ .Values.objects.networks }}
{{- end }}

{{/* ports of the node proxy's listeners that others than its own pod reach, sorted, as JSON: none on the host network, where
     no NetworkPolicy holds */}}
{{- define "isthmus.listenerPorts" -}}
{{- $ports := list }}
{{- if not .Values.nodeProxy.hostNetwork }}
{{- range concat (.Values.nodeProxy.config.socks | default list) (.Values.nodeProxy.config.outbound | default list) }}
{{- $listen := .listen | default "" | toString }}
{{- if not (regexMatch `^(127\.|\[::1\]|\[::ffff:127\.)` $listen) }}
{{- $ports = append $ports (regexFind "[0-9]+$" $listen | int) }}
{{- end }}
{{- end }}
{{- end }}
{{- $ports | uniq | sortAlpha | toJson }}
{{- end }}

{{/* whether gateways serve QUIC: "true" or nothing */}}
{{- define "isthmus.servesQUIC" -}}
{{- $lines := .Values.gateway.config.lines | default dict }}
{{- $all := append (values ($lines.transports | default dict)) $lines.transport }}
{{- if or (has "quic" $all) (has "auto" $all) }}true{{ end }}
{{- end }}

{{/* A client-side apply merges ports by their number alone, and would have a live object lose TCP for UDP. Two objects pass:
     one that a server-side apply has made, and one that has the UDP port already.
     (dict "live" object "ports" list "name" "Service isthmus-gateway") */}}
{{- define "isthmus.checkSecondProtocol" -}}
{{- $safe := not .live }}
{{- range dig "metadata" "managedFields" list .live }}
{{- if and (eq .operation "Apply") (dig "fieldsV1" "f:spec" false .) }}{{ $safe = true }}{{ end }}
{{- end }}
{{- range .ports }}
{{- if eq (.protocol | default "TCP") "UDP" }}{{ $safe = true }}{{ end }}
{{- end }}
{{- if not $safe }}
{{- fail (printf "gateway.config.lines.transport would have %s lose its TCP port: a client-side apply keeps one port of a number; with Helm 4 run helm upgrade --reuse-values --server-side=true before this change, else see docs/kubernetes.md, QUIC" .name) }}
{{- end }}
{{- end }}

{{/* a Service that other networks dial: (dict "root" $ "name" "isthmus-gateway" "annotations" dict), with its ports behind it */}}
{{- define "isthmus.front" -}}
{{- $c := dict "root" .root "component" "gateway" -}}
{{- $service := .root.Values.gateway.service -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "isthmus.labels" $c | nindent 4 }}
  {{- with .annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $service.type }}
  {{- if ne $service.type "ClusterIP" }}
  externalTrafficPolicy: {{ $service.externalTrafficPolicy }}
  {{- end }}
  {{- if eq $service.type "LoadBalancer" }}
  {{- with $service.loadBalancerClass }}
  loadBalancerClass: {{ . }}
  {{- end }}
  {{- with $service.loadBalancerSourceRanges }}
  loadBalancerSourceRanges: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with $service.externalIPs }}
  externalIPs: {{- toYaml . | nindent 4 }}
  {{- end }}
  ipFamilyPolicy: {{ $service.ipFamilyPolicy }}
  selector: {{- include "isthmus.selector" $c | nindent 4 }}
  ports:
{{- end }}

{{/* values that contradict each other, and would only be found out when it hurts */}}
{{- define "isthmus.checkTimes" -}}
{{- $times := .over.timeouts | default dict }}
{{- range $key, $value := .seconds }}
{{- if hasKey $times $key }}
{{- fail (printf "%s.config.timeouts.%s is %v: set %s.%s instead, from which the pods' grace period is computed" $.name $key (get $times $key) $.name $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* the other networks: none, until isthmus link says so; of two files of one name the later counts */}}
{{- define "isthmus.networks" -}}
- name: networks
  projected:
    sources:
      - configMap:
          name: {{ .own }}
          items: [{key: networks.yaml, path: networks.yaml}]
      - configMap: {name: {{ .root.Values.objects.networks }}, optional: true}
{{- end }}
