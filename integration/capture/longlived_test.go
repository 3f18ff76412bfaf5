package capture

import (
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// A resolver library that keeps one socket for ever is answered in every moment, by the node proxy or by the pod's own
// server, whether the node proxy is killed, told to stop or started, and by the node proxy once that captures names.
func TestASocketThatAsksForLongIsAnswered(t *testing.T) {
	w := newWorld(t)
	u, err := w.ListenPacket("gateway", addresses["gateway"]+":53")
	must(t, err)
	server := &dns.Server{PacketConn: u, Handler: dns.HandlerFunc(func(rw dns.ResponseWriter, q *dns.Msg) {
		rw.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
	})}
	go server.ActivateAndServe()
	t.Cleanup(func() { server.Shutdown() })
	ns, err := podns.Open(w.Path("shop-1"))
	must(t, err)
	defer ns.Close()
	d := net.Dialer{Control: ns.Control}
	plain, err := d.Dial("udp", addresses["gateway"]+":53")
	must(t, err)
	defer plain.Close()

	var asked, lost, mesh atomic.Int64
	var inARow, most atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		c := &dns.Conn{Conn: plain}
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
			asked.Add(1)
			q := new(dns.Msg).SetQuestion("hello.demo.mesh.internal.", dns.TypeA)
			c.SetDeadline(time.Now().Add(200 * time.Millisecond))
			err := c.WriteMsg(q)
			for r := new(dns.Msg); err == nil; {
				if r, err = c.ReadMsg(); err == nil && r.Id == q.Id { // else a late one
					if len(r.Answer) > 0 {
						mesh.Add(1)
					}
					break
				}
			}
			if err == nil {
				inARow.Store(0)
				continue
			}
			lost.Add(1)
			most.Store(max(most.Load(), inARow.Add(1)))
		}
	}()
	say := func(what string, captured bool) {
		t.Helper()
		deadline := time.Now().Add(5 * time.Second)
		for before := mesh.Load(); captured && mesh.Load() == before && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		a, l, m := asked.Load(), lost.Load(), mesh.Load()
		for asked.Load() < a+50 && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("%s: %d queries, %d not answered in 200 ms, of the mesh %d", what, asked.Load()-a, lost.Load()-l, mesh.Load()-m)
		if (mesh.Load() > m) != captured || asked.Load() < a+50 {
			t.Errorf("%s: %d queries, %d answers of the mesh; captured %v", what, asked.Load()-a, mesh.Load()-m, captured)
		}
	}
	say("at first", true)
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		must(t, w.nodes["node-a"].Stop(how, 30*time.Second))
		say(strings.ToLower(how.String()), false)
		w.start(t, "node-a")
		say("started", true)
	}
	close(stop)
	<-ended
	t.Logf("%d of %d queries were not answered, at most %d one after the other", lost.Load(), asked.Load(), most.Load())
	if lost.Load() > 10 {
		t.Errorf("%d of %d queries of a socket that stays were not answered, %d one after the other: want at most those under way when a process is killed", lost.Load(), asked.Load(), most.Load())
	}
}
