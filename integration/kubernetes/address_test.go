package kubernetes

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/internal/testlb"
)

// silentAfter is how long an address goes on answering that a load balancer has left.
const silentAfter = 3 * time.Second

// frontage is a load balancer of west with two addresses, each on a host of its own, of
// which it has one at a time.
type frontage struct {
	*world
	west  *side
	at    [2]testlb.Balancer
	peers map[string]netip.Addr // in the other network, that dial it
}

func (f *frontage) address(i int) string { return f.west.gatewayAddress(2 + i) }

func (f *frontage) host(i int) string { return fmt.Sprintf("west-lb-%d", i+1) }

// dialled is how many connections each peer has begun at an address.
func (f *frontage) dialled(i int) map[string]int {
	out := map[string]int{}
	for name, at := range f.peers {
		out[name] = f.at[i].From(at)
	}
	return out
}

// silence loses all that an address answers, or ends that.
func (f *frontage) silence(i int, silent bool) {
	f.t.Helper()
	do := "del"
	if silent {
		do = "add"
	}
	f.must(f.IP(f.host(i), "route", do, "blackhole", "10.71.1.0/24"))
}

// zone is a DNS server with one name, whose A records change.
type zone struct {
	name string
	ttl  uint32 // seconds

	mu   sync.Mutex
	list []string
}

func (z *zone) set(list ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.list = list
}

// ServeDNS implements dns.Handler.
func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	z.mu.Lock()
	defer z.mu.Unlock()
	switch x := q.Question[0]; {
	case x.Name != dns.Fqdn(z.name):
		m.Rcode = dns.RcodeNameError
	case x.Qtype == dns.TypeA:
		for _, a := range z.list {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: x.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: z.ttl}, A: net.ParseIP(a)})
		}
	}
	w.WriteMsg(m)
}

// serve answers on a host of its own, for all processes of the world that are yet to start.
func (z *zone) serve(w *world) {
	const address = "10.71.9.53"
	w.must(w.Host(segment, "dns", address))
	socket, err := w.ListenPacket("dns", address+":53")
	w.must(err)
	started, ended := make(chan struct{}), make(chan error, 1)
	s := &dns.Server{PacketConn: socket, Handler: z, NotifyStartedFunc: func() { close(started) }}
	go func() { ended <- s.ActivateAndServe() }()
	<-started
	w.t.Cleanup(func() {
		s.Shutdown()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.write("resolv.conf", "nameserver "+address+"\n")
	w.names = filepath.Join(w.Dir, "resolv.conf")
}

// The address before the gateways of west moves, under traffic from east: what the Service's
// status says, and what the host name leads to that it says later. What it has left goes silent a few
// seconds after, with all that is open there. Node proxies of east dial nobody but the
// new one in time, and no connection fails.
func TestTheAddressOfGatewaysMoves(t *testing.T) {
	w := newWorld(t, 2, "east", "west")
	f := &frontage{world: w, west: w.side("west"), peers: map[string]netip.Addr{}}
	for i := range f.at {
		f.west.serveBalancer(f.host(i), f.address(i), &f.at[i])
		f.at[i].Set(f.west.gatewayAddress(0)+":15008", f.west.gatewayAddress(1)+":15008")
	}
	for _, n := range w.side("east").nodes {
		f.peers[n.name] = netip.MustParseAddr(n.address)
	}
	names := &zone{name: "gw.west.test", ttl: 2}
	names.set(f.address(1))
	names.serve(w)
	f.west.balanced = []string{f.address(0)}
	s := w.openShop(t, 2, 4, "", 8080)

	var loads []*traffic
	for _, c := range []*demoPod{s.client, s.other} {
		loads = append(loads, c.start(hello, 20*time.Millisecond))
	}
	ttl := time.Duration(names.ttl) * time.Second
	for _, move := range []struct {
		what     string
		from, to int
		do       func()
		within   time.Duration
	}{
		{"the IP address in the status", 0, 1, func() { f.west.lends(t, f.address(1)) }, 2 * time.Second},
		{"a host name in its place, of the same address", 1, 1, func() { f.west.lends(t, names.name) }, 0},
		{"the host name leads elsewhere", 1, 0, func() { names.set(f.address(0)) }, ttl + 2*time.Second},
		{"to both", 0, 0, func() { names.set(f.address(0), f.address(1)) }, 0},
		{"to the other one alone", 0, 1, func() { names.set(f.address(1)) }, ttl + 2*time.Second},
	} {
		t.Run(move.what, func(t *testing.T) { f.move(t, move.from, move.to, move.do, move.within) })
	}
	for _, l := range loads {
		all := l.Stop()
		flawless(t, all)
		t.Logf("%d connections", len(all))
	}
}

// move has the load balancer go from one address to another one, and looks who dials which.
func (f *frontage) move(t *testing.T, from, to int, do func(), within time.Duration) {
	first := f.dialled(to)
	began := time.Now()
	passed := func(d time.Duration) {
		eventually(t, time.Minute, "time has passed", func() bool { return time.Since(began) > d })
	}
	do()
	if from == to {
		passed(5 * time.Second)
		return
	}
	came := map[string]time.Duration{}
	eventually(t, 30*time.Second, "all have dialed the new address", func() bool {
		for name, n := range f.dialled(to) {
			if _, did := came[name]; !did && n > first[name] {
				came[name] = time.Since(began)
			}
		}
		return len(came) == len(f.peers)
	})
	passed(within)
	then := f.dialled(from)
	passed(max(silentAfter, within))
	f.silence(from, true)
	passed(max(silentAfter, within) + 12*time.Second)
	for name, at := range f.peers {
		t.Logf("%s dials the new address after %v", name, came[name].Round(time.Millisecond))
		if came[name] > within {
			t.Errorf("%s has dialed the new address after %v, want within %v", name, came[name], within)
		}
		if n := f.at[from].From(at) - then[name]; n > 0 {
			t.Errorf("%s has dialed the old address %d times more than %v after it was left", name, n, within)
		}
	}
	f.silence(from, false)
}
