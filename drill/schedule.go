package drill

import (
	"iter"
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
}

// Schedule returns the arrivals of one arm: the same for the same seed, so that
// arms can be compared connection by connection. Ports and clients take turns.
// Poisson arrivals are independent of each other, as those of many users are;
// uniform ones are equally far apart.
func Schedule(s *Scenario, clients int) []Arrival {
	out := make([]Arrival, 0, int(s.Traffic.Rate*s.Duration.Seconds())+1)
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
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	mean := float64(time.Second) / s.Traffic.Rate
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
			at += gap * mean
			if at >= float64(s.Duration) {
				return
			}
			a := Arrival{At: time.Duration(at), Port: n % ports, Client: n / ports % clients}
			if hold < s.Traffic.Hold.Fraction {
				a.Hold = min(s.Traffic.Hold.For, s.Duration-a.At)
			}
			if !yield(a) {
				return
			}
		}
	}
}
