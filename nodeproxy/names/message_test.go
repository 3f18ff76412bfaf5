package names

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// packed is a query as a client sends it.
func packed(t testing.TB, name string, kind uint16, change ...func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	for _, c := range change {
		c(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// edns is a change of a query whose client takes so much by UDP.
func edns(size uint16) func(*dns.Msg) { return func(m *dns.Msg) { m.SetEdns0(size, true) } }

func vips(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// imported is a service that only other networks have, as discovery makes one of a ServiceImport.
func imported(name, namespace string, addresses ...string) *mesh.Service {
	return &mesh.Service{Name: name, Namespace: namespace, Hostname: name + "." + namespace + ".svc.cluster.local", Scope: mesh.ScopeGlobal, Takeover: true,
		Aliases: []string{name + "." + namespace + ".svc.clusterset.local", name + "." + namespace + ".mesh.internal"},
		VIPs:    vips(addresses...), Ports: []mesh.Port{{Name: "http", Service: 80, Target: 8080}, {Name: "grpc", Service: 9000, Target: 9000}}}
}

func snapshotOf(services ...*mesh.Service) *mesh.Snapshot {
	return mesh.NewSnapshot(7, mesh.Parts{TrustDomain: "cluster.local", Services: services})
}

// still is a Server without gateways and servers.
func still(search []string, services ...*mesh.Service) *Server {
	snap := snapshotOf(services...)
	return New(Config{Snapshot: func() *mesh.Snapshot { return snap }, Resolver: func() Resolver { return Resolver{Search: search} },
		Dial:    func(context.Context, string, netip.AddrPort) (net.Conn, error) { return nil, errors.New("no network") },
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: zerolog.Nop()})
}

func TestWhatIsNoQueryIsRefusedOrDropped(t *testing.T) {
	s := still(nil, imported("cart", "shop", "240.240.0.1"))
	good := packed(t, "cart.shop.mesh.internal", dns.TypeA, edns(1232))
	change := func(f func(b []byte) []byte) []byte { return f(bytes.Clone(good)) }
	for name, c := range map[string]struct {
		raw   []byte
		rcode int // -1: nothing is answered
	}{
		"as it should be":       {good, dns.RcodeSuccess},
		"empty":                 {nil, -1},
		"a byte short":          {good[:11], -1},
		"a reply":               {change(func(b []byte) []byte { b[2] |= 0x80; return b }), -1},
		"no question":           {change(func(b []byte) []byte { b[5] = 0; return b }), dns.RcodeFormatError},
		"two questions":         {change(func(b []byte) []byte { b[5] = 2; return b }), dns.RcodeFormatError},
		"65535 questions":       {change(func(b []byte) []byte { b[4], b[5] = 255, 255; return b }), dns.RcodeFormatError},
		"only a header":         {good[:12], dns.RcodeFormatError},
		"a name that ends":      {good[:20], dns.RcodeFormatError},
		"no type":               {good[:12+len("cart.shop.mesh.internal")+2], dns.RcodeFormatError},
		"points to itself":      {change(func(b []byte) []byte { b[12], b[13] = 0xc0, 12; return b }), dns.RcodeFormatError},
		"points back":           {change(func(b []byte) []byte { b[17], b[18] = 0xc0, 12; return b }), dns.RcodeFormatError},
		"a label of 64":         {change(func(b []byte) []byte { b[12] = 64; return b }), dns.RcodeFormatError},
		"more records than are": {change(func(b []byte) []byte { b[11] = 9; return b }), dns.RcodeFormatError},
		"65535 records":         {change(func(b []byte) []byte { b[10], b[11] = 255, 255; return b }), dns.RcodeFormatError},
		"a record that is cut":  {good[:len(good)-1], dns.RcodeFormatError},
		"bytes behind":          {append(bytes.Clone(good), 1, 2, 3), dns.RcodeSuccess},
		"another EDNS":          {change(func(b []byte) []byte { b[len(b)-5] = 1; return b }), dns.RcodeBadVers},
	} {
		_, reply, later := s.atOnce(c.raw, true)
		if later || (reply == nil) != (c.rcode < 0) {
			t.Errorf("%s: answered with %d bytes, passed on %v", name, len(reply), later)
			continue
		}
		if reply == nil {
			continue
		}
		var m dns.Msg
		if err := m.Unpack(reply); err != nil || m.Rcode != c.rcode || m.Id != binary.BigEndian.Uint16(c.raw) || !m.Response {
			t.Errorf("%s: %v, %v; want rcode %s", name, &m, err, dns.RcodeToString[c.rcode])
		}
	}
}

// A question comes back as it was asked, whatever letters it is in: clients that mix them expect
// that (draft-vixie-dnsext-dns0x20).
func TestQuestionsComeBackAsTheyWereAsked(t *testing.T) {
	s := still(nil, imported("cart", "shop", "240.240.0.1"))
	raw := packed(t, "CaRt.ShOp.mEsH.iNtErNaL", dns.TypeA)
	_, reply, _ := s.atOnce(raw, true)
	if !bytes.Equal(reply[12:len(raw)], raw[12:]) {
		t.Errorf("question %q became %q", raw[12:], reply[12:len(raw)])
	}
	var m dns.Msg
	if err := m.Unpack(reply); err != nil || len(m.Answer) != 1 || m.Answer[0].Header().Name != "CaRt.ShOp.mEsH.iNtErNaL." || !m.Authoritative || !m.RecursionAvailable || m.Answer[0].Header().Ttl != 5 {
		t.Errorf("answer %v, %v", &m, err)
	}
}

// A dot within a label ends none.
func TestADotInALabelIsNoEndOfOne(t *testing.T) {
	raw := packed(t, `cart.x\.mesh.internal`, dns.TypeA)
	q, err := readQuery(raw)
	if err != nil || zoneOf(q.lower) != "" {
		t.Errorf("%q is in a zone of the mesh (%v)", q.lower, err)
	}
}

// Nobody gets more than they take: who says nothing 512 bytes, and nobody more than passes all links.
func TestAnswersByUDPHaveABound(t *testing.T) {
	var many []string
	for i := range 250 {
		many = append(many, netip.AddrFrom4([4]byte{240, 240, 1, byte(i)}).String())
	}
	s := still(nil, imported("cart", "shop", many...))
	for _, c := range []struct {
		change func(*dns.Msg)
		udp    bool
		most   int
		cut    bool
	}{
		{func(*dns.Msg) {}, true, 512, true}, {edns(100), true, 512, true}, {edns(800), true, 800, true},
		{edns(65535), true, maxUDP, true}, {func(*dns.Msg) {}, false, 65535, false},
	} {
		_, reply, _ := s.atOnce(packed(t, "cart.shop.mesh.internal", dns.TypeA, c.change), c.udp)
		var m dns.Msg
		if err := m.Unpack(reply); err != nil || len(reply) > c.most || m.Truncated != c.cut || !c.cut && len(m.Answer) != 250 {
			t.Errorf("%d bytes, %d addresses, truncated %v (%v); want at most %d bytes", len(reply), len(m.Answer), m.Truncated, err, c.most)
		}
	}
}

// Whatever comes, what is answered can be read, answers that query, and is no longer than the client takes; what
// is passed on was understood as package dns understands it.
func FuzzQuery(f *testing.F) {
	for _, name := range []string{"cart.shop.mesh.internal", "_http._tcp.cart.shop.mesh.internal", "cart.shop.mesh.internal.demo.svc.cluster.local", "x.y.svc.cluster.local", "example.com", "."} {
		f.Add(packed(f, name, dns.TypeA))
		f.Add(packed(f, name, dns.TypeSRV, edns(4096)))
	}
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	f.Add(packed(f, "shop.mesh.internal", dns.TypeSOA, func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }))
	s := still([]string{"demo.svc.cluster.local", "svc.cluster.local", "cluster.local"}, imported("cart", "shop", "240.240.0.1", "2001:2::1"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		q, reply, later := s.atOnce(raw, true)
		if !bytes.Equal(raw, before) {
			t.Fatal("the query was written to")
		}
		if later {
			defer s.free(&q)
			reply = s.wait(t.Context(), &q, "udp", sizeFor(&q))
			var m dns.Msg
			if q.opcode() == dns.OpcodeQuery && m.Unpack(raw) == nil && len(m.Question) == 1 && !sameName(m.Question[0].Name, q.name) {
				t.Errorf("%q was read as %q", m.Question[0].Name, q.name)
			}
		}
		if reply == nil {
			return
		}
		var m dns.Msg
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("%x answered with %x: %v", raw, reply, err)
		}
		if !q.answers(reply) || len(reply) > sizeFor(&q) || m.Question != nil && !bytes.Equal(reply[headerSize:headerSize+len(q.question)], q.question) {
			t.Errorf("%x answered with %x", raw, reply)
		}
	})
}

// sameName compares names however they are escaped.
func sameName(a, b string) bool {
	x, y := make([]byte, 256), make([]byte, 256)
	n, err1 := dns.PackDomainName(a, x, 0, nil, false)
	m, err2 := dns.PackDomainName(b, y, 0, nil, false)
	return err1 == nil && err2 == nil && bytes.Equal(x[:n], y[:m])
}
