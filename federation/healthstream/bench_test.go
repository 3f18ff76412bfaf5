package healthstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// BenchmarkReconnect is 1 000 node proxies that attach to a gateway that has
// restarted, each with 20 services of 10 networks of 2 gateways to be told of: the
// processor time of both ends together, handshakes included, until all of them have
// the full state. The budget is 5 s for the gateway's part.
func BenchmarkReconnect(b *testing.B) {
	const nodes, uses = 1000, 20
	for b.Loop() {
		source := make(catalog)
		for i := range 2000 {
			name := fmt.Sprint("svc-", i)
			for n := range 10 {
				s := Share{Network: fmt.Sprint("network-", n)}
				for g := range 2 {
					s.Instances = append(s.Instances, voice(record.Instance{byte(n), byte(g)}, 1, name, record.Health{Ready: 3, Healthy: 3, ReadyCapacity: 3, HealthyCapacity: 3}))
				}
				source[name] = append(source[name], s)
			}
		}
		server := NewServer(ServerConfig{Name: "gw-1", Network: "west", Dead: time.Minute, Prover: NodeIdentities{Account: trust.Workload("nodeproxy"), Network: "west"}, Source: source, Place: newWorld(b).place})
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
				if err := full(tls.Client(near, config), i, uses); err != nil {
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
func full(conn *tls.Conn, i, uses int) error {
	f := &frames{conn: conn, dead: time.Minute}
	if err := f.write(attachOf(fmt.Sprint("node-", i), "west")); err != nil {
		return err
	}
	s := newServices(MaxServices, newVerified("west", nil))
	up := newUplink("gw-1", f)
	s.attach(up)
	for k := range uses {
		s.use(fmt.Sprint("svc-", (i*7+k)%2000), true)
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
