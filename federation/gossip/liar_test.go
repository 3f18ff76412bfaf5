package gossip

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// forge makes the instance of s vouch for records that no honest one could publish.
func (s *site) forge(from, to int, body proto.Message) {
	s.world.t.Helper()
	b, err := proto.Marshal(body)
	if err != nil {
		s.world.t.Fatal(err)
	}
	s.federation.do(func(n *antientropy.Node, _ time.Time) error {
		for i := from; i < to; i++ {
			e := record.Entry{Key: record.EncodeKey(record.Key{Kind: record.KindHealth, Service: fmt.Sprintf("forged-%d.default.svc.cluster.local", i), Port: 80}), Sequence: 1, Body: b}
			if err := n.Publisher().Set().Put(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// A gateway that its network's key has certified lies: a capacity of four thousand
// million, and far more services than anybody may have. Its odd record is a problem and
// spoils no other; what is beyond the limits is bounded in memory and in bytes, counted,
// and logged with the sender; and nobody else is heard less for it. FORGED_SERVICES=1000000
// is the same with the limits that hold in production.
func TestACertifiedGatewayThatLiesIsBounded(t *testing.T) {
	limits := ledger.Limits{Records: 1000, Bytes: 256 << 10, Instances: 4, NetworkBytes: 512 << 10}
	services := 8000
	if n, _ := strconv.Atoi(os.Getenv("FORGED_SERVICES")); n > 0 {
		limits, services = ledger.DefaultLimits, n
	}
	simulated(t, func(t *testing.T, w *world) {
		for _, n := range []string{"east", "west", "north"} {
			w.add(n, "gw-1")
		}
		relays, gateways := w.relays(), w.all()
		var log lines
		victim := w.start(gateways[0], relays[gateways[0]], func(c *Config) { c.limits, c.Log = limits, zerolog.New(&log) })
		liar := w.start(gateways[1], relays[gateways[1]], func(c *Config) { c.limits = ledger.Limits{Instances: 4, NetworkBytes: 1 << 30} })
		honest := w.start(gateways[2], relays[gateways[2]])
		liar.publish(9)
		honest.publish(10)
		eventually(t, "both are heard", func() bool { return victim.believes("west", 9) && victim.believes("north", 10) })

		liar.forge(0, 1, &federationpb.HealthBody{Ready: 1, Healthy: 1, ReadyCapacity: 4_000_000_000, HealthyCapacity: 4_000_000_000})
		id := liar.federation.Instance()
		eventually(t, "the capacity is a problem", func() bool {
			for k, err := range victim.status(id).Problems {
				return strings.HasPrefix(k.Service, "forged-0.") && strings.Contains(err.Error(), "4000000000")
			}
			return false
		})
		victim.federation.Read(func(l *ledger.Ledger) {
			if h, known := l.Health("west", "forged-0.default.svc.cluster.local", 80); known {
				t.Errorf("the capacity is believed: %+v", h)
			}
		})
		if !victim.believes("west", 9) {
			t.Error("the odd record spoils the others")
		}

		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		received := func() float64 {
			return testutil.ToFloat64(victim.metrics.Received.WithLabelValues("packet")) + testutil.ToFloat64(victim.metrics.Received.WithLabelValues("stream"))
		}
		liar.forge(1, services, &federationpb.HealthBody{Ready: 1, Healthy: 1, ReadyCapacity: 1, HealthyCapacity: 1})
		eventually(t, "the limit is reached, counted and logged with the sender", func() bool {
			text := log.String()
			return rejected(victim.metrics, "full") > 0 && strings.Contains(text, `"member":"west/gw-1"`)
		})
		start := received()
		for n := range 90 { // seconds
			time.Sleep(time.Second)
			st := victim.status(id)
			if st.Records > limits.Records || st.Bytes > limits.Bytes || st.Complete {
				t.Fatalf("after %d s: %d records and %d bytes are held, complete %v; limits %+v", n, st.Records, st.Bytes, st.Complete, limits)
			}
		}
		// A question every minute at last, each answered by a chunk of 256 KiB at most,
		// instead of a record of 100 bytes for each of the services every time.
		if got := received() - start; got > 4<<20 {
			t.Errorf("the victim received %.0f bytes in 90 s for records that it cannot hold; want less than 4 MiB", got)
		}
		if st := victim.status(id); st.Refused == nil || st.Phase == ledger.Live {
			t.Errorf("the liar is %v, refused for %v; want it believed no more, and why", st.Phase, st.Refused)
		}
		honest.publish(7)
		eventually(t, "the others are heard as before", func() bool { return victim.believes("north", 7) })
		runtime.GC()
		runtime.ReadMemStats(&after)
		t.Logf("all three gateways together hold %d KiB more, the liar's own %d records included; the victim received %.0f bytes in 90 s", (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10, services, received()-start)
	})
}
