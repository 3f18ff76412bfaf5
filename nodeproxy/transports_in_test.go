package nodeproxy

import (
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// onQUIC returns transports that use QUIC to west.
func onQUIC() (t *transports, moved *[]bool) {
	t, moved = newTransports(zerolog.Nop()), new([]bool)
	t.moved = func(_ string, quic bool) { *moved = append(*moved, quic) }
	t.uses("west", origin{})
	t.input("west", func(s *selector, now time.Time) {
		s.sample(now, lineSample{rtt: 40 * time.Millisecond, segments: 1000, lost: 10})
	})
	t.shook("west", 80*time.Millisecond, nil)
	return t, moved
}

func TestTransportToNetwork(t *testing.T) {
	p := &Proxy{}
	p.transports, _ = onQUIC()
	p.cfg.Lines.Transports = map[string]string{"west": lines.Auto, "north": lines.QUIC, "south": lines.Auto}
	for _, c := range []struct {
		network string
		bulk    bool
		want    string
	}{
		{"west", false, lines.Auto}, {"west", true, lines.TCP},
		{"north", false, lines.QUIC}, {"north", true, lines.TCP},
		{"south", false, lines.TCP}, {"east", false, lines.TCP},
	} {
		if got := p.transportTo(c.network, origin{}, c.bulk); got != c.want {
			t.Errorf("to %s, bulk %v: %s, want %s", c.network, c.bulk, got, c.want)
		}
	}
	if n := p.transports.networks(); len(n) != 2 {
		t.Errorf("state of %q; want it of networks with auto alone", n)
	}
	p.transports.retain(new(discovery.Store).Current())
	if n := p.transports.networks(); len(n) > 0 {
		t.Errorf("state of %q, which discovery does not list", n)
	}
}

// A failure of this host says nothing of UDP, and neither does a session that its peer has closed.
func TestTransportsIgnoreWhatIsNoUDPFailure(t *testing.T) {
	x, moved := onQUIC()
	x.shook("west", 0, &dialError{localfault.New(syscall.EMFILE)})
	x.closed("west", &hbone.GoAwayError{})
	x.closed("west", nil)
	if got, why, _ := x.now("west"); got != lines.QUIC || len(*moved) != 1 {
		t.Errorf("%s (%s), moved %v; want QUIC", got, why, *moved)
	}
	x.closed("west", hbone.ErrPingTimeout)
	if got, why, _ := x.now("west"); got != lines.TCP || len(*moved) != 2 {
		t.Errorf("%s (%s), moved %v; want TCP after a session has timed out", got, why, *moved)
	}
}

// After a doubt sessions that were opened over TCP meanwhile are replaced.
func TestTransportsMoveAfterDoubt(t *testing.T) {
	x, moved := onQUIC()
	x.suspect("west")
	if got, _, _ := x.now("west"); got != lines.TCP || len(*moved) != 1 {
		t.Errorf("%s, moved %v; want TCP for new sessions alone", got, *moved)
	}
	x.shook("west", 80*time.Millisecond, nil)
	if got, _, _ := x.now("west"); got != lines.QUIC || len(*moved) != 2 || !(*moved)[1] {
		t.Errorf("%s, moved %v; want QUIC again", got, *moved)
	}
}

func TestSampleOfCountsSinceTheLast(t *testing.T) {
	a, b := new(hbone.Session), new(hbone.Session)
	info := func(segments, lost uint64) tcp.Info {
		return tcp.Info{Congestion: "bbr", RTT: 40 * time.Millisecond, Segments: segments, Retransmitted: lost + 1, Duplicates: 1}
	}
	x, counted := sampleOf(map[*hbone.Session]tcp.Info{a: info(100, 5)}, nil)
	if want := (lineSample{rtt: 40 * time.Millisecond, segments: 100, lost: 5, bbr: true}); x != want {
		t.Errorf("%+v, want %+v", x, want)
	}
	second := info(10, 1)
	second.Congestion, second.RTT = "cubic", 80*time.Millisecond
	x, counted = sampleOf(map[*hbone.Session]tcp.Info{a: info(150, 7), b: second}, counted)
	if want := (lineSample{rtt: 60 * time.Millisecond, segments: 60, lost: 3}); x != want {
		t.Errorf("%+v, want %+v", x, want)
	}
	if x, counted = sampleOf(map[*hbone.Session]tcp.Info{b: second}, counted); x.segments != 0 || x.lost != 0 || len(counted) != 1 {
		t.Errorf("%+v, %d sessions; want nothing new of one session", x, len(counted))
	}
}
