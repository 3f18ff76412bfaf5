package picker

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func everybody(mesh.EndpointID) bool { return true }

// crowd is a service of n pods of equal capacity, of which some are reported sick.
func crowd(n, sick int) (*Picker, *Service) {
	pods := make([]*mesh.Workload, n)
	for i := range n {
		pods[i] = pod(i)
		pods[i].Capacity = 1
	}
	p := newPicker(everybody)
	s := p.Offer(export(pods...), epoch)
	for i := range sick {
		p.Reported(health.Key{Endpoint: pods[i].Endpoint, Port: 8080}, false, Word{Reason: "refused"}, epoch)
	}
	return p, s
}

func TestPodsAreChosenEvenly(t *testing.T) {
	for pods, bound := range map[int]float64{3: 1.05, 60: 1.2, 1000: 5} {
		p, s := crowd(pods, 0)
		n := max(5*pods, 300)
		got, most := map[string]int{}, 0
		for range n {
			c, _ := p.Pick(s, Request{}, epoch)
			got[c.Pod.UID]++
			most = max(most, got[c.Pod.UID])
			p.Done(&c, Outcome{}, epoch)
		}
		if hottest := float64(most*pods) / float64(n); hottest > bound {
			t.Errorf("%d pods: the hottest got %.2f times the mean; want at most %v", pods, hottest, bound)
		}
	}
}

func TestNobodyWithoutRoomIsChosenWhileOthersHaveIt(t *testing.T) {
	p, s := crowd(60, 0)
	crowded := func(id mesh.EndpointID) bool { return id != s.members[17].pod.Endpoint }
	for range 100 {
		c, _ := p.Pick(s, Request{Crowded: crowded}, epoch)
		if c.Pod != s.members[17].pod {
			t.Fatalf("%s was chosen, and only hello-00017 has room", c.Pod.UID)
		}
		p.Done(&c, Outcome{}, epoch)
	}
}

func TestAChoiceAmongTenThousandAllocatesNothing(t *testing.T) {
	p, s := crowd(10000, 1000)
	if n := testing.AllocsPerRun(200, func() {
		c, _ := p.Pick(s, Request{}, epoch)
		p.Opened(&c, epoch)
		p.Done(&c, Outcome{Health: health.Neutral}, epoch)
	}); n != 0 {
		t.Errorf("%v allocations for one choice", n)
	}
}

func TestWhatIsGoneIsForgotten(t *testing.T) {
	listed := true
	p := newPicker(func(mesh.EndpointID) bool { return listed })
	s := p.Offer(export(pod(1), pod(2)), epoch)
	open, _ := p.Pick(s, Request{}, epoch)
	p.Opened(&open, epoch)
	for _, w := range []*mesh.Workload{pod(1), pod(2)} {
		p.Doubt(w.Endpoint, epoch)
		p.Reported(health.Key{Endpoint: w.Endpoint, Port: 8080}, false, Word{}, epoch)
		p.Asked(w, Broken, "identity", epoch, epoch)
	}
	listed = false
	p.Retain(&mesh.Snapshot{}, epoch)
	p.Doubt(pod(1).Endpoint, epoch) // a connection to it ends late
	p.Asked(pod(1), Broken, "identity", epoch, epoch)
	p.Done(&open, Outcome{Health: health.Failure}, epoch)
	if n := p.Remembered() + p.Services() + p.hops.Len() + p.ports.Len(); n != 0 {
		t.Errorf("%d things are kept of pods and services that are gone", n)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			p, s := crowd(n, n/10)
			now := epoch.Add(time.Second)
			b.ReportAllocs()
			for b.Loop() {
				c, _ := p.Pick(s, Request{}, now)
				p.Done(&c, Outcome{Health: health.Neutral}, now)
			}
		})
	}
}
