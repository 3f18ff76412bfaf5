package gateway_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// rogue is a gateway of the own network that a thief has taken over: towards its node
// proxies it is what discovery says it is, and tells them whatever the test wants.
type rogue struct {
	server *healthstream.Server
	mu     sync.Mutex
	voices []healthstream.Voice
}

// Shares implements [healthstream.Source].
func (r *rogue) Shares(service string) []healthstream.Share {
	r.mu.Lock()
	defer r.mu.Unlock()
	voices := slices.DeleteFunc(slices.Clone(r.voices), func(v healthstream.Voice) bool {
		k, err := record.DecodeKey(v.Entries[0].Key)
		return err != nil || k.Service != service
	})
	return []healthstream.Share{{Network: "west", Instances: voices}}
}

func (r *rogue) tell(voices ...healthstream.Voice) {
	r.mu.Lock()
	r.voices = voices
	r.mu.Unlock()
	r.server.ChangedAll()
}

// rogueGateway serves health streams at the address of east's gateway, as that.
func rogueGateway(t *testing.T, m *meshtest.Mesh) *rogue {
	r := &rogue{}
	r.server = healthstream.NewServer(healthstream.ServerConfig{
		Name: "gw-1", Network: "east", Prover: healthstream.NodeIdentities{Account: m.ID("isthmus-system/nodeproxy"), Network: "east"},
		Place: func(mesh.EndpointID) (string, bool) { return "", false }, Source: r, Holds: func() []string { return []string{"west"} },
	})
	l, err := net.Listen("tcp4", m.GatewayAt("east", "gw-1").String())
	if err != nil {
		t.Fatal(err)
	}
	config := m.Manager().ServerTLS(m.ID("isthmus-system/gateway-east"), nil, healthstream.ALPN)
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { r.server.Run(ctx) })
	serving.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				conn := tls.Server(raw, config)
				if conn.HandshakeContext(ctx) != nil {
					raw.Close()
					return
				}
				if id, err := identity.PeerID(conn.ConnectionState()); err == nil {
					r.server.Accept(ctx, conn, id)
				}
			})
		}
	})
	t.Cleanup(func() { stop(); l.Close(); serving.Wait() })
	return r
}

// signer is an instance that says what the test wants, certified by a network's key.
type signer struct {
	t     *testing.T
	key   *networkkey.Instance
	count uint64
	intro record.Entry
}

func newSigner(t *testing.T, m *meshtest.Mesh, by, network string, at netip.AddrPort) *signer {
	t.Helper()
	d, err := keyfile.Open(m.Keys(by).Dir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := networkkey.NewInstance(rand.Reader)
	if err == nil {
		err = d.Key.Certify(key, network, "gw-1", time.Now(), time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{t: t, key: key}
	s.intro = s.sign(record.NetworkRecord(record.Network{Gateway: "gw-1", Addresses: []record.Address{{Host: at.Addr().String(), Port: at.Port()}}}))
	return s
}

func (s *signer) sign(r record.Record) record.Entry {
	s.t.Helper()
	e, err := record.Encode(r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.count++
	e.Sequence = s.count
	return s.key.SignRecord(e)
}

// export is a voice with an export of a service in namespace default.
func (s *signer) export(name string, ids []spiffeid.ID, ports ...uint16) healthstream.Voice {
	e := record.Export{Name: name, Namespace: "default", Scope: record.ScopeGlobal, Identities: ids, Capacity: 1}
	for _, p := range ports {
		e.Ports = append(e.Ports, record.Port{Port: p})
	}
	return s.voice(s.sign(record.ExportRecord(name+".default.svc.cluster.local", e)))
}

func (s *signer) voice(entries ...record.Entry) healthstream.Voice {
	return healthstream.Voice{Instance: s.key.ID(), Gateway: "gw-1", Live: true, Entries: entries, Certificate: s.key.Certificate(), Introduction: s.intro}
}

// What a compromised gateway of the own network invents, changes or repeats leads its node
// proxies nowhere: they believe of west what west's key proves, bounded by the link.
func TestAnExportThatTheOwnGatewayForgesOrReplaysLeadsNowhere(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-1")
	m.Service("hello", 80, 8080, 81, 8081)
	m.Service("other", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1")
	pod := m.Pod("west", "west-1", "hello-1", "hello", "other")
	pod.App(8080, 8081)
	m.Write()
	m.StartGateway("west", "gw-1").AwaitReady(t)
	m.StartNode("west", "west-1").AwaitReady(t)
	own, links := m.WriteOwn("east"), m.LinkFile("east")
	r := rogueGateway(t, m)
	client := m.StartNode("east", "east-1", func(c *nodeproxy.Config) {
		c.Discovery.File, c.Federation.Networks = own, links
	})
	client.AwaitReady(t)

	reach := func(to string) error {
		c, err := shop.Connect(to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = meshtest.Ask(c, "1")
		return err
	}
	const to, other = "hello.default.svc.cluster.local:80", "other.default.svc.cluster.local:80"
	nowhere := func(when, to string) {
		t.Helper()
		var refused *meshtest.SocksError
		for range 3 {
			if err := reach(to); !errors.As(err, &refused) {
				t.Errorf("%s: %s leads somewhere: %v", when, to, err)
			}
		}
	}
	at, ids := m.GatewayAt("west", "gw-1"), []spiffeid.ID{pod.Identity()}
	honest := newSigner(t, m, "west", "west", at)
	forger := newSigner(t, m, "east", "west", at) // certified by the key that the thief has
	noticed := func(reason string) {
		t.Helper()
		client.Log.Await(t, "not proven: not taken as the word of that network's gateway", "reason", reason, "gateway", "gw-1", "network", "west")
	}

	r.tell(forger.export("hello", ids, 80))
	nowhere("a certificate by the own network's key", to)
	noticed("certificate")

	bent := honest.export("hello", ids, 80)
	bent.Entries[0].Body = slices.Clone(bent.Entries[0].Body)
	bent.Entries[0].Body[1] ^= 0x20
	bent.Entries[0].Body[2] ^= 0x20
	r.tell(bent)
	nowhere("a changed export", to)
	noticed("forged")

	foreign, _ := spiffeid.FromString("spiffe://cluster.local/ns/kube-system/sa/hello")
	r.tell(honest.export("hello", []spiffeid.ID{foreign}, 80))
	nowhere("an export to identities that the link does not let answer", to)
	client.Log.Await(t, "not all that another network exports is used")

	older := honest.export("hello", ids, 80, 81)
	newer := honest.export("hello", ids, 80)
	r.tell(newer)
	meshtest.Eventually(t, "what west exports is reachable", func() bool { return reach(to) == nil })
	nowhere("a port that west does not export any more", "hello.default.svc.cluster.local:81")
	r.tell(older)
	noticed("older")
	nowhere("an older export", "hello.default.svc.cluster.local:81")

	r.tell(newer)
	meshtest.Eventually(t, "what west exports is reachable again", func() bool { return reach(to) == nil })
	moved := newer
	moved.Entries = []record.Entry{newer.Entries[0]}
	moved.Entries[0].Key = record.EncodeKey(record.Key{Kind: record.KindExport, Service: "other.default.svc.cluster.local"})
	r.tell(newer, moved)
	nowhere("an export of another service", other)

	r.tell()
	meshtest.Eventually(t, "what is withheld ends", func() bool { return reach(to) != nil })
}
