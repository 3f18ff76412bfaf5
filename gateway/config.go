package gateway

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/discovery/kube/imported"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/diagnose"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Config is the YAML of one gateway process.
type Config struct {
	Name                     string         `yaml:"name" doc:"name of this gateway in the discovery file" env:"ISTHMUS_GATEWAY_NAME"`
	Network                  string         `yaml:"network" doc:"network this gateway serves" env:"NETWORK"`
	Listen                   netip.AddrPort `yaml:"listen" doc:"address and port to listen on; the gateway's address in discovery when left out" env:"ISTHMUS_LISTEN"`
	DialFrom                 netip.Addr     `yaml:"dialFrom" doc:"source address of connections to pods, by which node proxies recognize gateways: discovery must list it (gateways[].sources); that of listen when left out" env:"ISTHMUS_DIAL_FROM"`
	ReusePort                bool           `yaml:"reusePort" default:"false" doc:"let a second process of this gateway listen on the same address and take over while the first one drains. Both need it, and separate admin addresses. Node proxies move their health streams to the second process when it starts. Stop the first one within a minute of the second one being ready. Sets net.ipv4.tcp_migrate_req in the network namespace. Where that fails (before Linux 5.14, or without permission), connections in their TCP handshake during the takeover are reset, and the log reports it" env:"ISTHMUS_REUSE_PORT"`
	TrustDomain              string         `yaml:"trustDomain" default:"cluster.local" doc:"trust domain of this process and of its node proxies" env:"TRUST_DOMAIN"`
	ServiceAccount           string         `yaml:"serviceAccount" default:"isthmus-system/gateway" doc:"namespace/name of the service account that this gateway runs as; used without discovery.file, which otherwise has it" env:"ISTHMUS_GATEWAY_SERVICE_ACCOUNT"`
	NodeServiceAccount       string         `yaml:"nodeServiceAccount" default:"isthmus-system/nodeproxy" doc:"namespace/name of the service account that node proxies run as. Only these may report health, each for pods of the node that its identity names or, with discovery.kube, its token (discovery.kube.nodeAudience)" env:"ISTHMUS_NODE_SERVICE_ACCOUNT"`
	ControllerServiceAccount string         `yaml:"controllerServiceAccount" default:"isthmus-system/controller" doc:"namespace/name of the service account that isthmus-controller runs as. Only this account may follow all exports of other networks. Empty: none may" env:"ISTHMUS_CONTROLLER_SERVICE_ACCOUNT"`

	Address          Address                `yaml:"address"`
	Discovery        Discovery              `yaml:"discovery"`
	VIPs             imported.Config        `yaml:"vips"`
	Identity         identity.Config        `yaml:"identity"`
	OutlierDetection Outlier                `yaml:"outlierDetection"`
	Federation       Federation             `yaml:"federation"`
	Retry            Retry                  `yaml:"retry"`
	Timeouts         Timeouts               `yaml:"timeouts"`
	Lines            lines.Config           `yaml:"lines"`
	Limits           Limits                 `yaml:"limits"`
	Admin            admin.Config           `yaml:"admin"`
	Operations       admin.OperationsConfig `yaml:"operations"`
	Diagnose         diagnose.Config        `yaml:"diagnose"`
	Log              logging.Config         `yaml:"log"`

	// Memory bounds the buffers of this process for connections. It is no key: main sets it.
	Memory *memory.Budget `yaml:"-"`
}

// Discovery has the sources of discovery: a file, and a Kubernetes cluster for the own
// network's pods and services.
type Discovery struct {
	file.Config `yaml:",inline"`
	Kube        kube.Config `yaml:"kube"`
}

// Warnings returns those of the file. A file beside a cluster has none: the workloads that its policies select are known
// only to a process that follows the cluster.
func (d Discovery) Warnings() []string {
	if d.Kube.Enabled() {
		return nil
	}
	return d.Config.Warnings()
}

// Warnings returns valid parts of the discovery file that have no effect: policies that select no workload, and
// gateways with addresses that other networks cannot reach.
func (c Config) Warnings() []string {
	list := c.Discovery.Warnings()
	if c.Discovery.File == "" {
		return list
	}
	snap, _, err := c.Discovery.Load()
	if err != nil {
		return list
	}
	return append(list, discovery.OnLoopback(snap, "")...)
}

// Outlier configures outlier detection of hops (gateway to pod address).
type Outlier struct {
	Scope         string `yaml:"scope" default:"endpoint" doc:"endpoint: exclude pods that do not answer or that node proxies report as ejected; none: select among all ready pods" env:"ISTHMUS_OUTLIER_SCOPE"`
	health.Config `yaml:",inline"`
}

// Federation is this gateway's part in gossip.
type Federation struct {
	Health   bool   `yaml:"health" default:"true" doc:"receive health reports of node proxies and exchange health with other gateways by gossip" env:"ISTHMUS_FEDERATION_HEALTH"`
	Keys     string `yaml:"keys" doc:"directory of this network's key, made by isthmus network init; required unless health is false. Read again every 10 s, like networks" env:"ISTHMUS_FEDERATION_KEYS"`
	Networks string `yaml:"networks" doc:"file with the other networks and their public keys, as printed by isthmus network show: nothing is accepted from a network that is not listed. Left out, only gateways of the own network are accepted" env:"ISTHMUS_FEDERATION_NETWORKS"`
	Group    string `yaml:"group" doc:"name of the group of gateways of this network that reach the same pods as this one, up to 63 bytes. Per service, the best availability in each group counts, and groups add up. Gateways without a group form one group. While only some gateways of a network have one, the network counts once for each group" env:"ISTHMUS_FEDERATION_GROUP"`
}

// maxGroup is the longest name of a group, in bytes: each update of a gateway carries it to
// the node proxies that subscribe to a service.
const maxGroup = 63

func (f Federation) check(v *strictyaml.Check, network string) {
	if len(f.Group) > maxGroup || strings.ContainsFunc(f.Group, func(r rune) bool { return r <= ' ' || r > '~' }) {
		v.Fail("federation.group", "%.80q: want at most %d printable ASCII characters without spaces, such as a zone's name", f.Group, maxGroup)
	}
	if f.Health && f.Keys == "" {
		v.Fail("federation.keys", "must be set: the directory of the network's key; make one with `isthmus network init --dir DIRECTORY --network %s`, or turn federation.health off", orWord(network, "NAME"))
	}
}

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}

// Retry bounds how often a connection that failed at one pod is tried at another.
type Retry struct {
	BudgetBurst int     `yaml:"budgetBurst" default:"500" doc:"retries towards a service that are available before the ratio limits them; a retry after a timeout costs five"`
	BudgetRatio float64 `yaml:"budgetRatio" default:"0.5" doc:"retries earned by each new connection to the service"`
}

// Timeouts bound every wait.
type Timeouts struct {
	Handshake        time.Duration `yaml:"handshake" default:"5s" doc:"longest TLS handshake of an incoming connection, over TCP or QUIC"`
	Dial             time.Duration `yaml:"dial" default:"2s" doc:"longest TCP connect to a pod address, before the next pod is tried"`
	Hello            time.Duration `yaml:"hello" default:"5s" doc:"time for a client to send a complete TLS ClientHello to the pod after the answer to its CONNECT. Then its stream is reset, which counts against no pod"`
	Answer           time.Duration `yaml:"answer" default:"500ms" doc:"time for a pod address to answer a client's ClientHello before another pod is tried; after a fifth of it, new connections use other pods"`
	Silence          time.Duration `yaml:"silence" default:"2s" doc:"time without a byte after which a pod address that received a complete ClientHello has failed as a hop"`
	HalfClosed       time.Duration `yaml:"halfClosed" default:"30s" doc:"time that a client may leave its stream open after the pod closed the connection"`
	LameDuck         time.Duration `yaml:"lameDuck" default:"0s" doc:"time between the stop signal and the drain. The process stays ready and serves as before, new connections included: for load balancers that still send connections to a gateway that left their list. Other gateways and node proxies prefer its siblings from the stop signal on. The chart sets 30s"`
	Drain            time.Duration `yaml:"drain" default:"10s" doc:"time that open connections may continue after the stop signal"`
	CertificateGrace time.Duration `yaml:"certificateGrace" default:"24h" doc:"time that open connections may continue after a certificate of their session has expired; new ones are refused on that session shortly before the expiry"`
}

// DefaultConfig returns what a key that is left out means.
func DefaultConfig() Config {
	return Config{
		TrustDomain:              "cluster.local",
		ServiceAccount:           discovery.DefaultGatewayServiceAccount,
		NodeServiceAccount:       "isthmus-system/nodeproxy",
		ControllerServiceAccount: "isthmus-system/controller",
		Discovery:                Discovery{file.DefaultConfig(), kube.DefaultConfig()},
		VIPs:                     imported.DefaultConfig(),
		OutlierDetection:         Outlier{Scope: ScopeEndpoint, Config: health.DefaultConfig()},
		Federation:               Federation{Health: true},
		Retry:                    Retry{BudgetBurst: 500, BudgetRatio: 0.5},
		Timeouts: Timeouts{Handshake: 5 * time.Second, Dial: 2 * time.Second, Hello: 5 * time.Second, Answer: 500 * time.Millisecond, Silence: 2 * time.Second,
			HalfClosed: 30 * time.Second, Drain: 10 * time.Second, CertificateGrace: 24 * time.Hour},
		Lines:  lines.DefaultConfig(),
		Limits: defaultLimits(),
		Admin:  admin.Config{Address: netip.MustParseAddrPort("127.0.0.1:15000")},
		Log:    logging.Config{Level: "info", Format: "auto"},
	}
}

// Scopes of outlier detection.
const (
	ScopeEndpoint = "endpoint"
	ScopeNone     = "none"
)

// LoadConfig reads the file at path over the defaults and the environment over
// both, and validates the result.
func LoadConfig(path string) (Config, []string, error) {
	var left error
	c, warnings, err := strictyaml.LoadValid(path, DefaultConfig(), func(c Config) (err error) {
		left, err = c.checkKnown()
		return err
	})
	if err != nil {
		err = errors.Join(err, left)
	}
	return c, warnings, err
}

// Validate names each field that cannot be, its value and the remedy, in the
// order of the fields.
func (c Config) Validate() (warnings []string, err error) {
	var v strictyaml.Check
	v.Required("name", c.Name, "give the gateway's name in the discovery file")
	v.Required("network", c.Network, "give the network that this gateway serves")
	if c.ReusePort && c.Lines.ServesQUIC() {
		v.Fail("reusePort", "true: a second process cannot take over QUIC connections: set it to false, or lines.transport (%s) and lines.transports to tcp", c.Lines.Transport)
	}
	_, err = c.nodeAccount()
	v.Join(err)
	_, err = c.controllerAccount()
	v.Join(err)
	c.Address.check(&v, c.Discovery.Kube.Enabled())
	c.checkDiscovery(&v)
	v.Join(c.Discovery.Kube.Validate())
	v.Join(c.VIPs.Validate())
	v.Join(c.Identity.Validate())
	warnings = c.OutlierDetection.check(&v)
	c.Federation.check(&v, c.Network)
	c.Retry.check(&v)
	c.Timeouts.check(&v)
	c.Lines.Check(&v)
	c.Limits.Check(&v, "limits")
	v.Join(c.Admin.Validate())
	v.Join(c.Diagnose.Validate())
	v.Join(c.Log.Validate())
	return warnings, v.Err()
}

// Instance returns the name of this process in log lines.
func (c Config) Instance() string { return c.Network + "/" + c.Name }

// nodeAccount returns the identity of node proxies, which may report health.
func (c Config) nodeAccount() (spiffeid.ID, error) {
	var v strictyaml.Check
	id, domain, account := identity.ParseAccount(c.TrustDomain, c.NodeServiceAccount)
	v.Field("trustDomain", domain)
	v.Field("nodeServiceAccount", account)
	return id, v.Err()
}

// controllerAccount returns the identity of the controller. Zero if there is none.
func (c Config) controllerAccount() (spiffeid.ID, error) {
	if c.ControllerServiceAccount == "" {
		return spiffeid.ID{}, nil
	}
	var v strictyaml.Check
	id, _, account := identity.ParseAccount(c.TrustDomain, c.ControllerServiceAccount)
	v.Field("controllerServiceAccount", account)
	return id, v.Err()
}

// checkDiscovery checks that the file or the cluster is configured as the source of
// gateways.
func (c Config) checkDiscovery(v *strictyaml.Check) {
	kube := c.Discovery.Kube
	if c.Discovery.File != "" || !kube.Enabled() || kube.Gateways == "" {
		if v.Join(c.Discovery.Config.Validate()); kube.Gateways != "" && c.Discovery.File != "" {
			v.Fail("discovery.kube.gateways", "%q: discovery.file says which gateways there are: remove one of the two", kube.Gateways)
		}
		return
	}
	if _, ok := c.address(); !ok {
		v.Fail("dialFrom", "must be set without discovery.file, or a listen address that is not all of them: the address of this pod, such as from status.podIP")
	}
	_, _, account := identity.ParseAccount(c.TrustDomain, c.ServiceAccount)
	v.Field("serviceAccount", account)
	rest := c.Discovery.Config
	rest.File = "none"
	v.Join(rest.Validate())
}

// address returns the address of this gateway by its own configuration.
func (c Config) address() (netip.AddrPort, bool) {
	port := uint16(mesh.HBONEPort)
	if c.Listen.IsValid() {
		port = c.Listen.Port()
	}
	at := c.DialFrom
	if !at.IsValid() {
		at = c.Listen.Addr()
	}
	return netip.AddrPortFrom(at.Unmap(), port), at.IsValid() && !at.IsUnspecified()
}

func (o Outlier) check(v *strictyaml.Check) (warnings []string) {
	if o.Scope != ScopeEndpoint && o.Scope != ScopeNone {
		v.Fail("outlierDetection.scope", "%q is unknown: use %s or %s", o.Scope, ScopeEndpoint, ScopeNone)
	}
	warnings, err := o.Config.Validate()
	v.Below("outlierDetection", err)
	return warnings
}

func (t Timeouts) check(v *strictyaml.Check) {
	v.Positive("timeouts.handshake", t.Handshake)
	v.Positive("timeouts.dial", t.Dial)
	v.Positive("timeouts.hello", t.Hello)
	v.Positive("timeouts.answer", t.Answer)
	v.Positive("timeouts.silence", t.Silence)
	v.Positive("timeouts.halfClosed", t.HalfClosed)
	if t.LameDuck < 0 {
		v.Fail("timeouts.lameDuck", "%v: must not be negative; 0s drains at once", t.LameDuck)
	}
	v.Positive("timeouts.drain", t.Drain)
	v.Positive("timeouts.certificateGrace", t.CertificateGrace)
}

func (r Retry) check(v *strictyaml.Check) {
	if r.BudgetBurst < 0 {
		v.Fail("retry.budgetBurst", "%d: must not be negative", r.BudgetBurst)
	}
	if r.BudgetRatio < 0 {
		v.Fail("retry.budgetRatio", "%v: must not be negative", r.BudgetRatio)
	}
}
