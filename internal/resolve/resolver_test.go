package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// zone is what a name leads to.
type zone struct {
	mu    sync.Mutex
	found []netip.Addr
	err   error
	ttl   time.Duration
	since time.Time // of a cache on the way, which keeps an answer for ttl
	kept  []netip.Addr
	asked atomic.Int64
}

func (z *zone) set(err error, list ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.found, z.err = addrs(list...), err
}

// lookup is a server that keeps what it was told for its time to live.
func (z *zone) lookup(context.Context, string) ([]netip.Addr, time.Duration, error) {
	z.asked.Add(1)
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.err != nil {
		return nil, 0, z.err
	}
	if time.Since(z.since) >= z.ttl {
		z.kept, z.since = z.found, time.Now()
	}
	return z.kept, z.ttl - time.Since(z.since), nil
}

// What a name leads to is known within its time to live and 2 s, whatever that is and
// whenever it changes, and it is asked for about once in that time.
func TestANameIsFollowedWithinItsTimeToLive(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Second, 5 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			z := &zone{ttl: ttl}
			z.set(nil, "192.0.2.1")
			var news atomic.Int64
			r := New(z.lookup, func() { news.Add(1) })
			ctx, cancel := context.WithCancel(t.Context())
			var run sync.WaitGroup
			run.Go(func() { r.Run(ctx) })
			r.Follow("gw.example.com")
			time.Sleep(3 * time.Second)
			start := time.Now()
			for i := range 10 {
				want := addrs(fmt.Sprintf("192.0.2.%d", i+10), fmt.Sprintf("2001:db8::%d", i+10))
				z.set(nil, want[1].String(), want[0].String(), want[0].String())
				changed := time.Now()
				for { // also that it leads nowhere else
					if got, _ := r.Addresses("gw.example.com"); slices.Equal(got, want) {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				if took := time.Since(changed); took > ttl+2*time.Second {
					t.Errorf("with a time to live of %v a change was known after %v", ttl, took)
				}
				time.Sleep(time.Duration(i) * 700 * time.Millisecond)
			}
			if n, most := z.asked.Load(), 3+int64(time.Since(start)/max(ttl, time.Second)); n > 2*most {
				t.Errorf("with a time to live of %v it was asked for %d times in %v", ttl, n, time.Since(start))
			}
			if got, _ := r.Addresses("gw.example.com"); !slices.Equal(got, addrs("192.0.2.19", "2001:db8::19")) {
				t.Errorf("long after the last change it leads to %v", got)
			}
			if n := news.Load(); n != 11 {
				t.Errorf("%d changes were told; want one for each", n)
			}
			cancel()
			run.Wait()
		})
	}
}

// A server that gives a part of the addresses at a time, by turns or at random, takes none away
// with that, and its answers are no news; one that it gives no more is given up.
func TestAddressesThatTakeTurnsStay(t *testing.T) {
	for _, parts := range []int{2, 4} {
		synctest.Test(t, func(t *testing.T) {
			var all []netip.Addr
			for i := range parts {
				all = append(all, addrs(fmt.Sprintf("192.0.2.%d", i+1))...)
			}
			var turn, news atomic.Int64
			var elsewhere atomic.Bool
			r := New(func(context.Context, string) ([]netip.Addr, time.Duration, error) {
				if elsewhere.Load() {
					return addrs("192.0.2.99"), 0, nil
				}
				i := int(turn.Add(1)) % parts
				return all[i : i+1], 0, nil
			}, func() { news.Add(1) })
			ctx, cancel := context.WithCancel(t.Context())
			var run sync.WaitGroup
			run.Go(func() { r.Run(ctx) })
			r.Follow("gw.example.com")
			time.Sleep(time.Duration(3*parts) * time.Second)
			before := news.Load()
			for i := range 100 {
				time.Sleep(time.Second)
				if got, _ := r.Addresses("gw.example.com"); !slices.Equal(got, all) {
					t.Fatalf("after %d answers it leads to %v; want %v", i, got, all)
				}
			}
			if n := news.Load() - before; n > 0 || turn.Load() < 100 {
				t.Errorf("%d of %d answers were told as news, and it were the same addresses", n, turn.Load())
			}
			elsewhere.Store(true)
			time.Sleep((missedAnswers + 2) * time.Second)
			if got, _ := r.Addresses("gw.example.com"); !slices.Equal(got, addrs("192.0.2.99")) {
				t.Errorf("it leads to %v once it has led elsewhere for long", got)
			}
			cancel()
			run.Wait()
		})
	}
}

// A name that is not found, or leads nowhere, leads where it led; and it is asked for ever
// more seldom.
func TestWhatANameLedToStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{}
		z.set(nil, "192.0.2.1")
		r := New(z.lookup, func() {})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })
		r.Follow("gw.example.com")
		time.Sleep(3 * time.Second)
		for _, err := range []error{ErrNotFound, errors.New("nobody answers"), nil} {
			z.set(err)
			before := z.asked.Load()
			time.Sleep(5 * time.Minute)
			got, why := r.Addresses("gw.example.com")
			if !slices.Equal(got, addrs("192.0.2.1")) || why == nil {
				t.Errorf("after %v the name leads to %v (%v); want what it led to, and why", err, got, why)
			}
			if n := z.asked.Load() - before; n > 130 {
				t.Errorf("asked %d times in 5 minutes while nothing came", n)
			}
		}
		z.set(nil, "192.0.2.2")
		time.Sleep(7 * time.Second)
		if got, err := r.Addresses("gw.example.com"); !slices.Equal(got, addrs("192.0.2.2")) || err != nil {
			t.Errorf("it leads to %v (%v) once it is found again", got, err)
		}
		r.Follow()
		if got, _ := r.Addresses("gw.example.com"); got != nil {
			t.Errorf("a name that nobody follows leads to %v", got)
		}
		cancel()
		run.Wait()
	})
}

// The first failed lookup of a name without addresses is reported, later ones are not.
func TestFirstFailedLookupIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{}
		z.set(ErrNotFound)
		var reports atomic.Int64
		r := New(z.lookup, func() { reports.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { r.Run(ctx) })
		r.Follow("gw.example.com")
		time.Sleep(5 * time.Minute)
		if n := reports.Load(); n != 1 {
			t.Errorf("%d reports of a name that leads nowhere; want one", n)
		}
		z.set(nil, "192.0.2.1")
		time.Sleep(10 * time.Second)
		z.set(ErrNotFound)
		time.Sleep(10 * time.Minute)
		if n := reports.Load(); n != 2 {
			t.Errorf("%d reports; want one more, of its address", n)
		}
		cancel()
		run.Wait()
	})
}

// By DNS both families are asked for, with search domains, and the shortest time to live
// counts.
func TestAnswersOfAServer(t *testing.T) {
	var mu sync.Mutex
	records := map[string][]string{
		"gw.example.com.":         {"gw.example.com. 30 IN A 192.0.2.1", "gw.example.com. 30 IN A 192.0.2.2", "gw.example.com. 7 IN AAAA 2001:db8::1"},
		"gateway.system.test.":    {"gateway.system.test. 5 IN A 192.0.2.9"},
		"alias.example.com.":      {"alias.example.com. 3 IN CNAME gw.example.com.", "gw.example.com. 30 IN A 192.0.2.1"},
		"many.example.com.":       nil,
		"nothing.example.com.":    {},
		"nothing-is.example.com.": {},
	}
	for i := range 100 {
		records["many.example.com."] = append(records["many.example.com."], fmt.Sprintf("many.example.com. 9 IN A 192.0.2.%d", i+1))
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		mu.Lock()
		list, found := records[q.Question[0].Name]
		mu.Unlock()
		if !found {
			m.Rcode = dns.RcodeNameError
		}
		for _, line := range list {
			rr, err := dns.NewRR(line)
			if err != nil {
				t.Error(err)
			} else if h := rr.Header().Rrtype; h == q.Question[0].Qtype || h == dns.TypeCNAME {
				m.Answer = append(m.Answer, rr)
			}
		}
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			m.Truncate(1232)
		}
		w.WriteMsg(m)
	})
	packets, stream := bothProtocols(t)
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: stream, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go s.ActivateAndServe()
		<-started
		t.Cleanup(func() { s.Shutdown() })
	}
	c := &dns.ClientConfig{Servers: []string{"127.0.0.1"}, Port: fmt.Sprint(packets.LocalAddr().(*net.UDPAddr).Port), Search: []string{"system.test"}, Ndots: 5}
	for name, want := range map[string]struct {
		addresses []netip.Addr
		ttl       time.Duration
	}{
		"gw.example.com":      {addrs("192.0.2.1", "192.0.2.2", "2001:db8::1"), 7 * time.Second},
		"gateway":             {addrs("192.0.2.9"), 5 * time.Second},
		"alias.example.com":   {addrs("192.0.2.1"), 3 * time.Second},
		"nothing.example.com": {nil, 0},
		"unknown.example.com": {nil, 0},
	} {
		got, ttl, err := inDomains(t.Context(), c, name)
		if !slices.Equal(got, want.addresses) || ttl != want.ttl || (err == nil) != (len(want.addresses) > 0) || err != nil && !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v for %v, %v; want %v for %v", name, got, ttl, err, want.addresses, want.ttl)
		}
	}
	if got, _, err := inDomains(t.Context(), c, "many.example.com"); err != nil || len(got) != 100 {
		t.Errorf("of a hundred addresses %d came: %v", len(got), err)
	}
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if _, _, err := DNS(path)(t.Context(), "x"); err == nil {
		t.Error("without a resolv.conf there is no error")
	}
	os.WriteFile(path, []byte("search a.test\n"), 0o600)
	if _, _, err := DNS(path)(t.Context(), "x"); err == nil {
		t.Error("without a server there is no error")
	}
}

// bothProtocols returns sockets for UDP and TCP at one port. A port that is free for one may be
// taken for the other: then the next is tried.
func bothProtocols(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	var err error
	for range 100 {
		var packets net.PacketConn
		if packets, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			break
		}
		var stream net.Listener
		if stream, err = net.Listen("tcp", packets.LocalAddr().String()); err == nil {
			return packets, stream
		}
		packets.Close()
	}
	t.Fatal(err)
	return nil, nil
}

// atOnePort returns sockets at 127.0.0.1, 127.0.0.2 and so on. A port that is free at the first
// may be taken at another one: then the next is tried.
func atOnePort(t *testing.T, n int) (sockets []net.PacketConn, port string) {
	t.Helper()
	var err error
	for range 100 {
		sockets, port = nil, "0"
		for i := range n {
			var s net.PacketConn
			if s, err = net.ListenPacket("udp", fmt.Sprintf("127.0.0.%d:%s", i+1, port)); err != nil {
				break
			}
			sockets, port = append(sockets, s), fmt.Sprint(s.LocalAddr().(*net.UDPAddr).Port)
		}
		if len(sockets) == n {
			for _, s := range sockets {
				t.Cleanup(func() { s.Close() })
			}
			return sockets, port
		}
		for _, s := range sockets {
			s.Close()
		}
	}
	t.Fatalf("no port is free at %d addresses: %v", n, err)
	return nil, ""
}

// servers serve DNS at 127.0.0.1, 127.0.0.2 and so on, at one port; a nil handler is one that
// never answers.
func servers(t *testing.T, handlers ...dns.HandlerFunc) (addresses []string, port string) {
	t.Helper()
	sockets, port := atOnePort(t, len(handlers))
	for i, h := range handlers {
		packets := sockets[i]
		addresses = append(addresses, packets.LocalAddr().(*net.UDPAddr).IP.String())
		if h == nil {
			continue
		}
		s := &dns.Server{PacketConn: packets, Handler: h}
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go s.ActivateAndServe()
		<-started
		t.Cleanup(func() { s.Shutdown() })
	}
	return addresses, port
}

// answering is a server that knows names, has an error for those of rcodes and says of all
// others that they do not exist.
func answering(names map[string]string, rcodes map[string]int) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		name := q.Question[0].Name
		ip, found := names[name]
		switch rcode, odd := rcodes[name]; {
		case odd && (rcode != dns.RcodeFormatError || q.IsEdns0() != nil):
			m.Rcode = rcode
		case !found:
			m.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			rr, _ := dns.NewRR(name + " 9 IN A " + ip)
			m.Answer = append(m.Answer, rr)
		}
		w.WriteMsg(m)
	}
}

// A search domain that fails hides no name after it, a server that fails or is gone no server
// after it, as in resolv.conf(5) and glibc; and a server that is gone costs its time once.
func TestSearchDomainsAndServersThatFail(t *testing.T) {
	search := []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"}
	known := map[string]string{"gw.example.com.": "192.0.2.1", "gateway.corp.example.": "192.0.2.2"}
	for what, c := range map[string]struct {
		servers []dns.HandlerFunc
		name    string
		want    string // none: it is not found
		least   bool   // nobody says that the name does not exist
	}{
		"a search domain has SERVFAIL":          {[]dns.HandlerFunc{answering(known, map[string]int{"gw.example.com.svc.cluster.local.": dns.RcodeServerFailure})}, "gw.example.com", "192.0.2.1", false},
		"a search domain is refused":            {[]dns.HandlerFunc{answering(known, map[string]int{"gw.example.com.corp.example.": dns.RcodeRefused})}, "gw.example.com", "192.0.2.1", false},
		"the first server is gone":              {[]dns.HandlerFunc{nil, answering(known, nil)}, "gw.example.com", "192.0.2.1", false},
		"the first server has SERVFAIL":         {[]dns.HandlerFunc{answering(nil, map[string]int{"gw.example.com.": dns.RcodeServerFailure}), answering(known, nil)}, "gw.example.com", "192.0.2.1", false},
		"the first server is gone, in a domain": {[]dns.HandlerFunc{nil, answering(known, nil)}, "gateway", "192.0.2.2", false},
		"NXDOMAIN of the first server counts":   {[]dns.HandlerFunc{answering(nil, nil), answering(known, nil)}, "gw.example.com", "", false},
		"a server without EDNS":                 {[]dns.HandlerFunc{answering(known, map[string]int{"gw.example.com.": dns.RcodeFormatError})}, "gw.example.com", "192.0.2.1", false},
		"the name itself has SERVFAIL":          {[]dns.HandlerFunc{answering(known, map[string]int{"gw.example.com.": dns.RcodeServerFailure})}, "gw.example.com", "", true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			at, port := servers(t, c.servers...)
			conf := &dns.ClientConfig{Servers: at, Port: port, Search: search, Ndots: 5, Timeout: 5, Attempts: 2}
			r := New(func(ctx context.Context, host string) ([]netip.Addr, time.Duration, error) {
				return inDomains(ctx, conf, host)
			}, func() {})
			n := &name{}
			began := time.Now()
			r.ask(t.Context(), c.name, n)
			var want []netip.Addr
			if c.want != "" {
				want = addrs(c.want)
			}
			if !slices.Equal(n.addresses, want) || (n.err == nil) != (c.want != "") || c.want == "" && errors.Is(n.err, ErrNotFound) == c.least {
				t.Errorf("%v (%v); want %v", n.addresses, n.err, want)
			}
			if took := time.Since(began); c.want != "" && took > 4*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// Nobody is where a search domain is forwarded to: a name with a dot is asked for as it is, as by
// glibc, and no other search domain costs its time. What does not exist otherwise may exist there.
func TestASearchDomainThatNobodyAnswersForHidesNoName(t *testing.T) {
	for name, want := range map[string]string{"gw.example.com": "192.0.2.1", "none.example.com": "", "gateway": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			normal := answering(map[string]string{"gw.example.com.": "192.0.2.1"}, nil)
			var mu sync.Mutex
			asked := map[string]bool{}
			at, port := servers(t, func(w dns.ResponseWriter, q *dns.Msg) {
				if full := q.Question[0].Name; strings.HasSuffix(full, ".test.") {
					mu.Lock()
					defer mu.Unlock()
					asked[full] = true
					return
				}
				normal(w, q)
			})
			c := &dns.ClientConfig{Servers: at, Port: port, Search: []string{"svc.cluster.local", "a.test", "b.test"}, Ndots: 5, Timeout: 1, Attempts: 1}
			found, _, err := inDomains(t.Context(), c, name)
			switch {
			case want == "" && (err == nil || errors.Is(err, ErrNotFound)):
				t.Errorf("found %v, %v; want that nobody answers, which says nothing of the name", found, err)
			case want != "" && !slices.Equal(found, addrs(want)):
				t.Errorf("found %v, %v; want %s", found, err, want)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(asked) != 1 {
				t.Errorf("asked for %v; want one search domain that is silent", asked)
			}
		})
	}
}

// A name moves before its time to live is over, and connections to the old addresses fail.
// The new address is known within leastBetween of the last failure. While no address can
// be reached at all, no more than one question per leastBetween is asked.
func TestNameIsResolvedAgainWhenAllAddressesFail(t *testing.T) {
	for _, list := range [][]string{{"10.0.0.1"}, {"10.0.0.1", "10.0.0.2", "2001:db8::1"}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			z := &zone{ttl: time.Second}
			z.set(nil, list...)
			r := New(func(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
				found, _, err := z.lookup(ctx, name)
				return found, time.Hour, err // the time to live that the record has
			}, func() {})
			r.Follow("gw.example")
			var running sync.WaitGroup
			running.Go(func() { r.Run(ctx) })
			time.Sleep(time.Minute)
			began := z.asked.Load()
			for i, a := range addrs(list...) {
				synctest.Wait()
				if n := z.asked.Load(); n != began {
					t.Errorf("%d questions after %d of %d addresses failed", n-began, i, len(list))
				}
				r.Unreachable(a)
			}
			synctest.Wait()
			if n := z.asked.Load(); n != began+1 {
				t.Errorf("%d questions when all addresses failed; want 1 at once", n-began)
			}
			const outage = time.Minute
			for end := time.Now().Add(outage); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				for _, a := range addrs(list...) {
					r.Unreachable(a)
				}
			}
			if n := z.asked.Load() - began; n < int64(outage/leastBetween) || n > int64(outage/leastBetween)+2 {
				t.Errorf("%d questions in %v without a reachable address; want one per %v", n, outage, leastBetween)
			}
			z.set(nil, "10.9.9.9")
			for _, a := range addrs(list...) {
				r.Unreachable(a)
			}
			time.Sleep(leastBetween + 2*time.Second)
			if got, _ := r.Addresses("gw.example"); !slices.Equal(got, addrs("10.9.9.9")) {
				t.Errorf("%v after the name moved; want 10.9.9.9", got)
			}
			stop()
			running.Wait()
		})
	}
}
