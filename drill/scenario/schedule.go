package scenario

import (
	"iter"
	"math"
	"math/rand/v2"
	"time"
)

// Arrival is one connection that a client is to open, whatever happened to the
// ones before it.
type Arrival struct {
	At     time.Duration // from the first instant of traffic
	Client int           // index into Layout.Clients
	Port   int           // index into Scenario.Ports
	Hold   time.Duration // how long it stays open; 0 is one exchange
	Abort  Abort         // how the client breaks it off on purpose; zero: not
}

// Abort is how and when a client breaks a connection off, as the stop button of
// a browser or the end of a process does.
type Abort struct {
	How    string        // "reset" or "close"; empty: not at all
	Upload bool          // of a transfer from the client; else of one to it
	Wait   time.Duration // break off so long after the begin, whatever came by then; 0: in the transfer
	After  int           // break off after so many bytes of the transfer, less than a quarter of TransferBytes
	Stop   time.Duration // how long it has neither read nor written by then, so that data waits everywhere
}

// TransferBytes is the length of the transfers that clients break off, all in
// their first quarter: there is always more to send than buffers hold.
const TransferBytes = 4 << 20

// Bounds of what is drawn for connections that are broken off.
const (
	maxAbortWait = 10 * time.Millisecond // while they are being opened
	maxAbortStop = 40 * time.Millisecond
)

// drawAbort draws a random point: one in four while the connection is being
// opened, the others evenly from the transfer.
func drawAbort(rng *rand.Rand) Abort {
	a := Abort{How: []string{"reset", "close"}[rng.IntN(2)], Upload: rng.IntN(2) == 0, After: rng.IntN(TransferBytes / 4), Stop: time.Duration(rng.Int64N(int64(maxAbortStop)))}
	if wait := time.Duration(1 + rng.Int64N(int64(maxAbortWait))); rng.IntN(4) == 0 {
		a.Wait = wait
	}
	return a
}

// Schedule returns the arrivals of one arm: the same for the same seed, so that
// arms can be compared connection by connection. Ports and clients take turns.
// Poisson arrivals are independent of each other, as those of many users are;
// uniform ones are equally far apart.
func Schedule(s *Scenario, clients int) []Arrival {
	out := make([]Arrival, 0, Planned(s))
	for a := range arrivals(s, clients) {
		out = append(out, a)
	}
	return out
}

// Planned is how many arrivals the schedule of one arm has.
func Planned(s *Scenario) (n int) {
	for range arrivals(s, 1) {
		n++
	}
	return n
}

func arrivals(s *Scenario, clients int) iter.Seq[Arrival] {
	rng, aborts := rand.New(rand.NewPCG(s.Seed, 0)), rand.New(rand.NewPCG(s.Seed, 1<<32))
	ports := len(s.Ports())
	return func(yield func(Arrival) bool) {
		at := 0.0
		for n := 0; ; n++ {
			// Both draws are made each time: a change of one setting does not
			// move what the others decide.
			gap, hold := rng.ExpFloat64(), rng.Float64()
			if s.Traffic.Arrivals == "uniform" {
				gap = 1
			}
			if at = s.Traffic.after(at, gap); at >= float64(s.Duration) {
				return
			}
			a := Arrival{At: time.Duration(at), Port: n % ports, Client: n / ports % clients}
			if abort, share := drawAbort(aborts), aborts.Float64(); s.Traffic.Surge.Has(a.At) {
				// one exchange
			} else if share < float64(s.Traffic.Abort) {
				a.Abort = abort
			} else if hold < float64(s.Traffic.Hold.Fraction) {
				a.Hold = min(s.Traffic.Hold.For, s.Duration-a.At)
			}
			if !yield(a) {
				return
			}
		}
	}
}

// after returns the instant, in nanoseconds, at which so many connections more
// than until at are due: the rate is another one while the surge lasts.
func (t Traffic) after(at, connections float64) float64 {
	begin, end := float64(t.Surge.At), float64(t.Surge.Until)
	for {
		rate, change := t.Rate, math.Inf(1)
		switch {
		case at < begin:
			change = begin
		case at < end:
			rate, change = t.Surge.Rate, end
		}
		mean := float64(time.Second) / rate
		if next := at + connections*mean; next < change {
			return next
		}
		connections -= (change - at) / mean
		at = change
	}
}
