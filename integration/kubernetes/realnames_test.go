package kubernetes

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// coredns is the binary of CoreDNS that make test-kubelet builds.
const coredns = "COREDNS"

// internetNames is the address of who answers for names outside the clusters.
const internetNames = "10.71.9.53"

// outside is a name there, and what it stands for.
const outside, outsideAddress = "www.example.com.", "198.51.100.7"

// corednsManifest is that of a usual cluster, but for the image, the one replica and ports of
// its health that are not those of our node proxy on the host network.
const corednsManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
  - {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
      errors
      health
      ready
      kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
      }
      forward . /etc/resolv.conf
      cache 1
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      containers:
        - name: coredns
          image: localhost/coredns:1
          args: ["-conf", /etc/coredns/Corefile]
          volumeMounts: [{name: config, mountPath: /etc/coredns}]
          readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1}
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: ` + dnsService + `
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`

// names installs CoreDNS in a cluster, and waits until it answers.
func (w *realWorld) names(network string) {
	w.t.Helper()
	file := filepath.Join(w.operator.dir, "coredns.yaml")
	w.must(os.WriteFile(file, []byte(corednsManifest), 0o600))
	w.does(w.t, "kubectl --context "+network+" apply -f coredns.yaml")
	w.wait(w.t, network, "--namespace kube-system rollout status deployment/coredns", 2*time.Minute)
	// A new Service's first answers can be lost until kube-proxy knows its endpoint.
	eventually(w.t, time.Minute, "CoreDNS of "+network+" answers by its Service", func() bool {
		ip, _ := w.lookup(w.t, network, outside)
		return ip == outsideAddress
	})
}

// lookup asks the DNS of a cluster for an IPv4 address, from its node.
func (w *realWorld) lookup(t *testing.T, network, name string) (string, error) {
	t.Helper()
	var conn net.Conn
	if err := w.nodes[network].place.enter(func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(dnsService, "53"))
		return err
	}); err != nil {
		return "", err
	}
	c := &dns.Conn{Conn: conn}
	defer c.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	if err := c.WriteMsg(new(dns.Msg).SetQuestion(name, dns.TypeA)); err != nil {
		return "", err
	}
	r, err := c.ReadMsg()
	if err != nil {
		return "", err
	}
	for _, rr := range r.Answer {
		if a, is := rr.(*dns.A); is {
			return a.A.String(), nil
		}
	}
	return "", nil
}

// internet answers for names outside the clusters: what nodes ask that CoreDNS cannot answer.
func (w *realWorld) internet() {
	t := w.t
	t.Helper()
	w.must(w.Host(segment, "internet", internetNames))
	conn, err := w.ListenPacket("internet", net.JoinHostPort(internetNames, "53"))
	w.must(err)
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(rw dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		switch name := q.Question[0]; {
		case strings.ToLower(name.Name) != outside:
			r.Rcode = dns.RcodeNameError
		case name.Qtype == dns.TypeA:
			r.Answer = append(r.Answer, &dns.A{Hdr: dns.RR_Header{Name: name.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(outsideAddress)})
		}
		rw.WriteMsg(r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); server.ActivateAndServe() }()
	t.Cleanup(func() { server.Shutdown(); <-done })
}
