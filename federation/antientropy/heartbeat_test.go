package antientropy

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// among is a node that hears of many others, which it does not answer here.
type among struct {
	node   *Node
	now    time.Time
	others []*Publisher
	names  []string
}

func newAmong(t testing.TB, gateways int) *among {
	source := chacha("among")
	a := &among{now: epoch}
	known := networkkey.Known{}
	var own *Publisher
	for n := range (gateways + 1) / 2 {
		network := fmt.Sprintf("network-%02d", n)
		key, err := networkkey.Generate(source)
		if err != nil {
			t.Fatal(err)
		}
		known[network] = []networkkey.Public{key.Public()}
		for g := range 2 {
			instance, err := networkkey.NewInstance(source)
			if err == nil {
				err = key.Certify(instance, network, fmt.Sprintf("gw-%d", g), a.now, networkkey.MaxLifetime)
			}
			if err != nil {
				t.Fatal(err)
			}
			p := NewPublisher(instance, ledger.DefaultLimits.Records, ledger.DefaultLimits.Bytes)
			p.Synchronise()
			if own == nil {
				own = p
			} else {
				a.others, a.names = append(a.others, p), append(a.names, fmt.Sprintf("%s/gw-%d", network, g))
			}
		}
	}
	a.node = NewNode(Config{Publisher: own, Ledger: ledger.New(known, ledger.DefaultLimits), Random: chacha("numbers").Uint64}, a.now)
	for n, name := range a.names {
		a.node.AddPeer(name, record.Instance{}, name, n == 0, a.now)
	}
	a.tick(t)
	for _, m := range a.round(t) {
		a.hear(t, m)
	}
	return a
}

func (a *among) tick(t testing.TB) {
	if _, _, err := a.node.Tick(a.now); err != nil {
		t.Fatal(err)
	}
}

// heartbeat is one of those that come in turn, spread over the time between two.
type heartbeat struct {
	peer    string
	message []byte
}

// round returns the next heartbeat of each.
func (a *among) round(t testing.TB) (out []heartbeat) {
	for n, p := range a.others {
		p.Answer(record.Instance(a.node.publisher.id()), a.names[0], a.node.number)
		m, err := p.Statement(uint64(n+1), nobody, a.now)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, heartbeat{a.names[n], statementMessage(m.Statement)})
	}
	return out
}

// hear takes a heartbeat and asks when something is to be done, as a gateway does.
func (a *among) hear(t testing.TB, h heartbeat) {
	a.now = a.now.Add(Beat / time.Duration(len(a.others)))
	if _, _, err := a.node.Receive(h.peer, h.message, a.now); err != nil {
		t.Fatal(err)
	}
	if next := a.node.Next(a.now); !next.After(a.now) {
		a.tick(t)
	}
}

// When something is to be done is asked after each message, of which there are as many more
// as gateways: it must not take longer among more of them, too.
func TestWhatIsDueDoesNotTakeLongerAmongMore(t *testing.T) {
	took := func(gateways int) time.Duration {
		a := newAmong(t, gateways)
		const times = 2000
		least := time.Hour
		for range 20 {
			begun := time.Now()
			for range times {
				a.node.ledger.Advance(a.now)
				a.node.Next(a.now)
			}
			least = min(least, time.Since(begun)/times)
		}
		return least
	}
	few, many := took(10), took(200)
	t.Logf("%v among 10, %v among 200", few, many)
	if many > 5*few {
		t.Errorf("%v among 200 gateways, %v among 10: want about the same", many, few)
	}
}

// BenchmarkHeartbeat is what one heartbeat costs a gateway that hears it, its signature and
// what is done from time to time included.
func BenchmarkHeartbeat(b *testing.B) {
	for _, gateways := range []int{20, 50, 100, 200} {
		b.Run(fmt.Sprintf("gateways=%d", gateways), func(b *testing.B) {
			a := newAmong(b, gateways)
			b.ReportAllocs()
			var round []heartbeat
			for b.Loop() {
				if len(round) == 0 {
					b.StopTimer()
					round = a.round(b)
					b.StartTimer()
				}
				a.hear(b, round[0])
				round = round[1:]
			}
		})
	}
}
