package nodeproxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/diagnose"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
	"github.com/isthmus-mesh/isthmus/route"
)

// Config is the YAML of one node proxy process.
type Config struct {
	Node           string `yaml:"node" doc:"name of this node in the discovery file" env:"NODE_NAME"`
	Network        string `yaml:"network" doc:"network this node is on" env:"NETWORK"`
	TrustDomain    string `yaml:"trustDomain" default:"cluster.local" doc:"trust domain of this process" env:"TRUST_DOMAIN"`
	ClusterDomain  string `yaml:"clusterDomain" doc:"domain of the cluster's own DNS names, such as k8s.example: NAME.NAMESPACE.svc.DOMAIN then is the service that all networks call NAME.NAMESPACE.svc.cluster.local. Left out: taken from resolv.conf (search svc.DOMAIN), for captured pods from that of the pod, for listeners and SOCKS from that of this process" env:"CLUSTER_DOMAIN"`
	ServiceAccount string `yaml:"serviceAccount" default:"isthmus-system/nodeproxy" doc:"namespace/name of the service account of this process. Its identity is spiffe://<trustDomain>/ns/<namespace>/sa/<name>, with /node/<network>/<node> appended unless federation.token proves the node" env:"ISTHMUS_SERVICE_ACCOUNT"`

	Discovery        Discovery              `yaml:"discovery"`
	Identity         identity.Config        `yaml:"identity"`
	Inbound          Inbound                `yaml:"inbound"`
	Outbound         []Outbound             `yaml:"outbound" doc:"static listeners of local workloads, each for one destination"`
	Socks            []Socks                `yaml:"socks" doc:"SOCKS5 listeners of local workloads"`
	Capture          pods.Config            `yaml:"capture"`
	OutlierDetection Outlier                `yaml:"outlierDetection"`
	Retry            Retry                  `yaml:"retry"`
	Federation       Federation             `yaml:"federation"`
	Timeouts         Timeouts               `yaml:"timeouts"`
	Lines            lines.Config           `yaml:"lines"`
	Limits           admission.Config       `yaml:"limits"`
	Admin            admin.Config           `yaml:"admin"`
	Operations       admin.OperationsConfig `yaml:"operations"`
	Diagnose         diagnose.Config        `yaml:"diagnose"`
	Log              logging.Config         `yaml:"log"`

	// Memory bounds the buffers of this process for connections. It is no key: main sets it.
	Memory *memory.Budget `yaml:"-"`
}

// Discovery has the source of discovery: a file, or the gateways of the own network, which
// send the part that this node needs.
type Discovery struct {
	file.Config           `yaml:",inline"`
	Gateways              []string `yaml:"gateways" doc:"instead of file: gateways of this node's own network, host:port each, as sources of discovery for this node" env:"ISTHMUS_DISCOVERY_GATEWAYS"`
	GatewayServiceAccount string   `yaml:"gatewayServiceAccount" default:"isthmus-system/gateway" doc:"namespace/name of the service account that gateways run as: the identity that gateways under gateways must present, in the trust domain of this process" env:"ISTHMUS_GATEWAY_SERVICE_ACCOUNT"`
	Cache                 string   `yaml:"cache" doc:"file with the last discovery data from the gateways, for starts while none of them is reachable; left out, a start waits for a gateway" env:"ISTHMUS_DISCOVERY_CACHE"`
}

func (d Discovery) check(v *strictyaml.Check, trustDomain string, health bool) {
	if len(d.Gateways) == 0 {
		v.Join(d.Config.Validate())
		if d.Cache != "" {
			v.Fail("discovery.cache", "%q: is of what gateways tell: set discovery.gateways, or leave it out", d.Cache)
		}
		return
	}
	if d.File != "" {
		v.Fail("discovery.file", "%q: stands beside discovery.gateways: remove one of the two", d.File)
	}
	if !health {
		v.Fail("discovery.gateways", "%q: what gateways tell comes over the health streams: turn federation.health on, or set discovery.file", d.Gateways[0])
	}
	for i, g := range d.Gateways {
		_, _, err := splitTarget(g)
		v.Field(fmt.Sprintf("discovery.gateways[%d]", i), err)
	}
	_, _, account := identity.ParseAccount(trustDomain, d.GatewayServiceAccount)
	v.Field("discovery.gatewayServiceAccount", account)
}

// Inbound has the ports of a local pod that peers may connect to.
type Inbound struct {
	Ports string `yaml:"ports" default:"any" doc:"ports of a pod that peers of the own network may connect to: any, as in stock node proxies; declared: target ports of the pod's services; exported: those of global services. Connections through a gateway are always restricted to exported" env:"ISTHMUS_INBOUND_PORTS"`
}

// Values of inbound.ports.
const (
	PortsAny      = "any"
	PortsDeclared = "declared"
	PortsExported = "exported"
)

func (i Inbound) scope() route.Scope {
	switch i.Ports {
	case PortsDeclared:
		return route.DeclaredPorts
	case PortsExported:
		return route.ExportedPorts
	}
	return route.AnyPort
}

func (i Inbound) check(v *strictyaml.Check) {
	switch i.Ports {
	case PortsAny, PortsDeclared, PortsExported:
	default:
		v.Fail("inbound.ports", "%q is unknown: use %s, %s or %s", i.Ports, PortsAny, PortsDeclared, PortsExported)
	}
}

// Outbound is one static listener: its connections go to one service.
type Outbound struct {
	Workload string         `yaml:"workload" doc:"UID of the local workload; connections to the listener count as its own"`
	Listen   netip.AddrPort `yaml:"listen" doc:"address and port to listen on"`
	To       string         `yaml:"to" doc:"destination of connections, host:port: a service's hostname and port, its virtual IP, or a pod of this network"`
}

// Socks is one SOCKS5 listener of a local workload.
type Socks struct {
	Workload string         `yaml:"workload" doc:"UID of the local workload; connections to the listener count as its own"`
	Listen   netip.AddrPort `yaml:"listen" doc:"address and port to listen on, usually port 15080"`
}

// Outlier configures outlier detection by this node proxy's own observations.
type Outlier struct {
	Scope         string `yaml:"scope" default:"endpoint" doc:"endpoint: eject single endpoints, by own observation and by the reports of other networks about theirs; networkService: eject a whole remote service, by own observation; none: never eject" env:"ISTHMUS_OUTLIER_SCOPE"`
	Listeners     bool   `yaml:"listeners" default:"true" doc:"with scope endpoint, watch the listening sockets of local applications (Linux). An endpoint is ejected when its socket closes or accepts nothing, before a connection reaches it; false: only failed connects are detected" env:"ISTHMUS_OUTLIER_LISTENERS"`
	health.Config `yaml:",inline"`
}

// Scopes of outlier detection.
const (
	ScopeEndpoint       = "endpoint"
	ScopeNetworkService = "networkService"
	ScopeNone           = "none"
)

// Retry bounds retries of a connect at other endpoints.
type Retry struct {
	Attempts    int           `yaml:"attempts" default:"8" doc:"retries after the first connect attempt; 0 never retries" env:"ISTHMUS_RETRY_ATTEMPTS"`
	Deadline    time.Duration `yaml:"deadline" default:"15s" doc:"no attempt starts later than this after the application connected"`
	Early       bool          `yaml:"early" default:"true" doc:"send early data: forward the application's bytes before the destination application has accepted, which saves a round trip. If the destination then vanishes without an answer, the connection fails, because a retry could repeat the bytes" env:"ISTHMUS_RETRY_EARLY"`
	Hedge       bool          `yaml:"hedge" default:"true" doc:"withdraw a connect and try another endpoint if the destination reports a full accept queue or an application that takes over 100 ms to accept. Needs another healthy endpoint and a budget of five retries; false waits" env:"ISTHMUS_RETRY_HEDGE"`
	BudgetBurst int           `yaml:"budgetBurst" default:"500" doc:"retries towards a service, per identity of the pods on this node, that are available before the ratio limits them"`
	BudgetRatio float64       `yaml:"budgetRatio" default:"0.5" doc:"retries earned by each new connection of that identity to the service"`
}

// Federation is this node proxy's part in health across networks.
type Federation struct {
	Health   bool          `yaml:"health" default:"true" doc:"report the health of local pods to this network's gateways, and receive that of other networks from them" env:"ISTHMUS_FEDERATION_HEALTH"`
	Networks string        `yaml:"networks" doc:"file with the other networks and their public keys, as for the gateways of this network. Exports and gateway addresses that these keys prove are used in addition to discovery. Read again every 10 s; keys below. Left out, only discovery is used" env:"ISTHMUS_FEDERATION_NETWORKS"`
	Token    string        `yaml:"token" doc:"file of a service-account token, bound to the pod of this process, that proves its node to gateways; its audience is discovery.kube.nodeAudience of the gateways. Read for each attempt, as the kubelet replaces it. The identity of this process then has no node. Left out, its certificate names the node" env:"ISTHMUS_FEDERATION_TOKEN"`
	Idle     time.Duration `yaml:"idle" default:"10m" doc:"time that data of a service stays current after its last use by a local pod; destinations of static listeners always do"`
}

// Timeouts bound every wait.
type Timeouts struct {
	Dial             time.Duration `yaml:"dial" default:"2s" doc:"longest TCP connect to a gateway or a pod address"`
	Handshake        time.Duration `yaml:"handshake" default:"3s" doc:"longest TLS handshake, and longest wait for the peer's HTTP/2 settings"`
	Connect          time.Duration `yaml:"connect" default:"5s" doc:"longest wait for the answer to one CONNECT"`
	App              time.Duration `yaml:"app" default:"2s" doc:"longest TCP connect to a local application"`
	Idle             time.Duration `yaml:"idle" default:"5m" doc:"time that a session without connections stays open for reuse" env:"POOL_UNUSED_RELEASE_TIMEOUT"`
	Drain            time.Duration `yaml:"drain" default:"10s" doc:"time that open connections may continue after the stop signal"`
	CertificateGrace time.Duration `yaml:"certificateGrace" default:"24h" doc:"time that open connections may continue after a certificate of their session has expired; new ones use new sessions from shortly before the expiry"`
}

// DefaultConfig returns what a key that is left out means.
func DefaultConfig() Config {
	return Config{
		TrustDomain:      "cluster.local",
		ServiceAccount:   "isthmus-system/nodeproxy",
		Discovery:        Discovery{Config: file.DefaultConfig(), GatewayServiceAccount: discovery.DefaultGatewayServiceAccount},
		Inbound:          Inbound{Ports: PortsAny},
		Capture:          pods.DefaultConfig(),
		OutlierDetection: Outlier{Scope: ScopeEndpoint, Listeners: true, Config: health.DefaultConfig()},
		Retry:            Retry{Attempts: 8, Deadline: 15 * time.Second, Early: true, Hedge: true, BudgetBurst: 500, BudgetRatio: 0.5},
		Federation:       Federation{Health: true, Idle: 10 * time.Minute},
		Timeouts: Timeouts{Dial: 2 * time.Second, Handshake: 3 * time.Second, Connect: 5 * time.Second, App: 2 * time.Second, Idle: 5 * time.Minute, Drain: 10 * time.Second,
			CertificateGrace: 24 * time.Hour},
		Lines:  lines.DefaultConfig(),
		Limits: admission.DefaultConfig(),
		Admin:  admin.Config{Address: netip.MustParseAddrPort("127.0.0.1:15000")},
		Log:    logging.Config{Level: "info", Format: "auto"},
	}
}

// LoadConfig reads the file at path over the defaults and the environment over
// both, and validates the result.
func LoadConfig(path string) (Config, []string, error) {
	var left, vain error
	c, warnings, err := strictyaml.LoadValid(path, DefaultConfig(), func(c Config) (err error) {
		left, vain, err = c.checkNames()
		return err
	})
	if err != nil {
		return c, warnings, errors.Join(err, left)
	}
	return c, slices.Concat(warnings, c.OutlierDetection.inVain(path), strictyaml.Located(path, c, vain)), nil
}

// inVain returns warnings for keys that the file at path, or the environment, sets and that have no effect with
// the configured scope. It loads them again over another default, as a set value may equal the default.
func (o Outlier) inVain(path string) []string {
	if o.Scope == ScopeEndpoint || !o.Listeners {
		return nil
	}
	written := DefaultConfig()
	written.OutlierDetection.Listeners = false
	if written, _, err := strictyaml.LoadValid(path, written); err != nil || !written.OutlierDetection.Listeners {
		return nil
	}
	return []string{fmt.Sprintf("outlierDetection.listeners: true does nothing with scope %s: listening sockets are watched with scope %s alone: leave it out, or set that scope", o.Scope, ScopeEndpoint)}
}

// Validate names each field that cannot be, its value and the remedy, in the
// order of the fields.
func (c Config) Validate() (warnings []string, err error) {
	var v strictyaml.Check
	v.Required("node", c.Node, "give this node's name in the discovery file")
	v.Required("network", c.Network, "give the network that this node is on")
	if c.ClusterDomain != "" {
		v.Field("clusterDomain", c.checkClusterDomain())
	}
	_, err = c.SPIFFEID()
	v.Join(err)
	c.Discovery.check(&v, c.TrustDomain, c.Federation.Health)
	v.Join(c.Identity.Validate())
	c.Inbound.check(&v)
	c.checkListeners(&v)
	c.Capture.Check(&v)
	warnings = c.OutlierDetection.check(&v)
	c.Retry.check(&v)
	v.Positive("federation.idle", c.Federation.Idle)
	if c.Identity.Source == identity.SourceIstio && c.Federation.Health && c.Federation.Token == "" {
		v.Fail("federation.token", "must be set: by identity.source istio no certificate names this node, so a token has to: name the file of one for audience isthmus-gateway, or turn federation.health off")
	}
	if c.Federation.Token != "" && !c.Federation.Health {
		v.Fail("federation.token", "%q: it is shown on the health streams: turn federation.health on, or leave the file out", c.Federation.Token)
	}
	if c.Federation.Networks != "" && !c.Federation.Health {
		v.Fail("federation.networks", "%q: exports come over the health streams: turn federation.health on, or leave the file out", c.Federation.Networks)
	}
	c.Timeouts.check(&v)
	c.Lines.Check(&v)
	if t := c.Lines.Transports[c.Network]; t != "" {
		v.Fail("lines.transports", "%s: %s: is the network of this node, not another one: remove it", c.Network, t)
	}
	c.Limits.Check(&v, "limits")
	v.Join(c.Admin.Validate())
	v.Join(c.Diagnose.Validate())
	v.Join(c.Log.Validate())
	return warnings, v.Err()
}

func (c Config) checkListeners(v *strictyaml.Check) {
	of := map[netip.AddrPort]string{}
	check := func(field, workload string, listen netip.AddrPort) {
		if workload == "" || !listen.IsValid() {
			v.Fail(field, "needs workload and listen")
		} else if first := of[listen]; first != "" && listen.Port() != 0 {
			v.Fail(field+".listen", "%s is the address of %s: choose a free one", listen, first)
		}
		of[listen] = field
	}
	for i, o := range c.Outbound {
		field := fmt.Sprintf("outbound[%d]", i)
		check(field, o.Workload, o.Listen)
		_, _, err := splitTarget(o.To)
		v.Field(field+".to", err)
	}
	for i, s := range c.Socks {
		check(fmt.Sprintf("socks[%d]", i), s.Workload, s.Listen)
	}
}

func (o Outlier) check(v *strictyaml.Check) (warnings []string) {
	switch o.Scope {
	case ScopeEndpoint, ScopeNetworkService, ScopeNone:
	default:
		v.Fail("outlierDetection.scope", "%q is unknown: use %s, %s or %s", o.Scope, ScopeEndpoint, ScopeNetworkService, ScopeNone)
	}
	warnings, err := o.Config.Validate()
	v.Below("outlierDetection", err)
	return warnings
}

func (r Retry) check(v *strictyaml.Check) {
	if r.Attempts < 0 || r.Attempts > 100 {
		v.Fail("retry.attempts", "%d: must be within 0 and 100", r.Attempts)
	}
	v.Positive("retry.deadline", r.Deadline)
	if r.BudgetBurst < 0 {
		v.Fail("retry.budgetBurst", "%d: must not be negative", r.BudgetBurst)
	}
	if r.BudgetRatio < 0 {
		v.Fail("retry.budgetRatio", "%v: must not be negative", r.BudgetRatio)
	}
}

func (t Timeouts) check(v *strictyaml.Check) {
	v.Positive("timeouts.dial", t.Dial)
	v.Positive("timeouts.handshake", t.Handshake)
	v.Positive("timeouts.connect", t.Connect)
	v.Positive("timeouts.app", t.App)
	if t.App >= t.Connect {
		v.Fail("timeouts.app", "%v must be below timeouts.connect %v, or clients give up before the application's timeout is known", t.App, t.Connect)
	}
	v.Positive("timeouts.idle", t.Idle)
	v.Positive("timeouts.drain", t.Drain)
	v.Positive("timeouts.certificateGrace", t.CertificateGrace)
}

// Instance returns the name of this process in log lines.
func (c Config) Instance() string { return c.Network + "/" + c.Node }

// SPIFFEID returns the identity of the process: that of its service account, with the
// node appended unless a token names it. Gateways accept reports for pods of that node
// only.
func (c Config) SPIFFEID() (spiffeid.ID, error) {
	id, domain, account := identity.ParseAccount(c.TrustDomain, c.ServiceAccount)
	var v strictyaml.Check
	v.Field("trustDomain", domain)
	v.Field("serviceAccount", account)
	if err := v.Err(); err != nil || c.Node == "" || c.Network == "" || c.Federation.Token != "" { // Validate has said so; or the token names the node
		return id, err
	}
	id, err := identity.NodeID(id, c.Network, c.Node)
	v.Field("node", err)
	return id, v.Err()
}

// splitTarget parses host:port.
func splitTarget(to string) (host string, port uint16, err error) {
	host, p, err := net.SplitHostPort(to)
	if err != nil {
		return "", 0, fmt.Errorf("%q: write host:port", to)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 || host == "" {
		return "", 0, fmt.Errorf("%q: want a host and a port within 1 and 65535", to)
	}
	return host, uint16(n), nil
}
