package healthstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// BenchmarkReconnect is 1 000 node proxies that attach to a gateway that has
// restarted, each with 20 services of 10 networks of 2 gateways to be told of: the
// processor time of both ends together, handshakes included, until all of them have
// the full state. The budget is 5 s for the gateway's part. With discovery each is told the
// pods of its node and of the 20 services beside, of 20 000 in all.
func BenchmarkReconnect(b *testing.B) {
	b.Run("health", func(b *testing.B) { reconnect(b, nil) })
	c := newCluster()
	var records []discovery.Change
	for i := range 2000 {
		records = append(records, serviceOf(fmt.Sprint("svc-", i)))
	}
	for i := range 20_000 {
		p := pod("pod", fmt.Sprint("node-", i/20), hostOf(fmt.Sprint("svc-", i%2000)))
		w := p.Record.(discovery.Workload)
		w.UID, w.Addresses = fmt.Sprintf("8f2c1d3e-0000-4000-8000-%012d", i), []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
		p.Key.Name, p.Record = w.UID, w
		records = append(records, p)
	}
	c.say(records...)
	b.Run("health and discovery", func(b *testing.B) { reconnect(b, excerpt.NewIndex("west", c.snap)) })
}

func reconnect(b *testing.B, excerpts *excerpt.Index) {
	const nodes, uses = 1000, 20
	for b.Loop() {
		source := make(catalog)
		for i := range 2000 {
			name := hostOf(fmt.Sprint("svc-", i))
			for n := range 10 {
				s := Share{Network: fmt.Sprint("network-", n)}
				for g := range 2 {
					s.Instances = append(s.Instances, voice(record.Instance{byte(n), byte(g)}, 1, name, record.Health{Ready: 3, Healthy: 3, ReadyCapacity: 3, HealthyCapacity: 3}))
				}
				source[name] = append(source[name], s)
			}
		}
		server := NewServer(ServerConfig{Excerpts: excerpts, Name: "gw-1", Network: "west", Dead: time.Minute, Prover: NodeIdentities{Account: trust.Workload("nodeproxy"), Network: "west"}, Source: source, Place: newWorld(b).place})
		m := trust.NewManager(b)
		accepting := m.ServerTLS(trust.Workload("gateway-west"), nil, ALPN)
		configs := make([]*tls.Config, nodes)
		for i := range configs {
			c, err := m.ClientTLS(b.Context(), trust.Node("west", fmt.Sprint("node-", i)), []spiffeid.ID{trust.Workload("gateway-west")}, ALPN)
			if err != nil {
				b.Fatal(err)
			}
			configs[i] = c
		}
		var wg, told sync.WaitGroup
		ctx, stop := context.WithCancel(b.Context())
		before, start := processor(), time.Now()
		for i, config := range configs {
			near, far := simnet.Pair(simnet.Options{})
			wg.Go(func() {
				conn := tls.Server(far, accepting)
				if conn.HandshakeContext(ctx) != nil {
					return
				}
				id, _ := identity.PeerID(conn.ConnectionState())
				server.Accept(ctx, conn, id)
			})
			told.Add(1)
			wg.Go(func() {
				defer told.Done()
				if err := full(tls.Client(near, config), i, uses, excerpts != nil); err != nil {
					b.Error(err)
				}
			})
		}
		told.Wait()
		b.ReportMetric((processor() - before).Seconds(), "cpu-s")
		b.ReportMetric(time.Since(start).Seconds(), "s")
		stop()
		wg.Wait()
	}
}

// full attaches and reads until all services are answered.
func full(conn *tls.Conn, i, uses int, excerpts bool) error {
	f := &frames{conn: conn, dead: time.Minute}
	if err := f.write(attachOf(fmt.Sprint("node-", i), "west")); err != nil {
		return err
	}
	s := newServices(MaxServices, newVerified("west", nil))
	s.excerpts = excerpts
	up := newUplink("gw-1", f)
	s.attach(up)
	if excerpts {
		up.lead(true)
	}
	for k := range uses {
		s.use(hostOf(fmt.Sprint("svc-", (i*7+k)%2000)), true)
	}
	if _, err := f.read(); err != nil {
		return err
	}
	for _, m := range up.take(silent{}) {
		if err := f.write(m); err != nil {
			return err
		}
	}
	for !s.settled() {
		m, err := f.read()
		if err != nil {
			return err
		}
		if _, err := s.take(up, m.GetServices()); err != nil {
			return err
		}
		for _, n := range m.GetExcerpt().GetNames() {
			s.describe([]string{n.GetAsked()})
		}
	}
	return nil
}

// silent is a node proxy with nothing to say.
type silent struct{}

func (silent) All() []Fact              { return nil }
func (silent) Fact(Target) (Fact, bool) { return Fact{}, false }

// catalog is a Source that never changes.
type catalog map[string][]Share

func (c catalog) Shares(service string) []Share { return c[service] }

// processor is the processor time of this process.
func processor() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
