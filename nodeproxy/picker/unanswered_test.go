package picker

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// tell has connections to w's port fail, one after the other, each as ways say.
func tell(t *testing.T, p *Picker, s *mesh.Snapshot, w *mesh.Workload, now time.Time, ways ...Outcome) {
	t.Helper()
	f := flow(s)
	f.Host, f.Port = w.Addresses[0].String(), 8080
	for _, o := range ways {
		d, err := p.Resolve(s, f, now)
		if err != nil {
			t.Fatal(err)
		}
		c, err := p.Pick(d, Tried{}, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		p.Done(&c, o, now)
	}
}

var (
	unanswered = Outcome{At: AtEndpoint, Fault: true, Hop: true, Reason: "connect"}
	refused    = Outcome{At: AtEndpoint, Fault: true, Responded: true, Reason: "refused"}
)

func TestAnAnswerOfAPodsNodeProxyTakesBackWhatFailedForLackOfOneAlone(t *testing.T) {
	s := layout{distribution: "Any", east: 2}.snapshot(t, 1)
	pod, other := s.Workload("east-00000"), s.Workload("east-00001")
	for _, x := range []struct {
		name   string
		ways   []Outcome
		ill    bool // by the word of its witness
		asked  *mesh.Workload
		o      health.Outcome
		back   bool
		waits  bool // for the next question
		phases health.Phase
	}{
		{"did not answer twice", []Outcome{unanswered, unanswered}, false, pod, health.Success, true, false, health.Healthy},
		{"refused twice", []Outcome{refused, refused}, false, pod, health.Success, false, false, health.Ejected},
		{"refused, then did not answer", []Outcome{refused, unanswered}, false, pod, health.Success, false, false, health.Ejected},
		{"did not answer, then refused", []Outcome{unanswered, refused}, false, pod, health.Success, false, false, health.Ejected},
		{"its witness says that it is ill", []Outcome{unanswered, unanswered}, true, pod, health.Success, false, true, health.Ejected},
		{"another pod answers", []Outcome{unanswered, unanswered}, false, other, health.Success, false, false, health.Ejected},
		{"the question says nothing", []Outcome{unanswered, unanswered}, false, pod, health.Neutral, false, true, health.Ejected},
		{"it does not answer the question either", []Outcome{unanswered, unanswered}, false, pod, health.Failure, false, true, health.Ejected},
		{"one failure, and it does not answer the question", []Outcome{unanswered}, false, pod, health.Failure, false, true, health.Ejected},
		{"one failure, and it answers", []Outcome{unanswered}, false, pod, health.Success, false, false, health.Healthy},
	} {
		c := defaults()
		c.Health = func(k Share) (Health, bool) {
			if k.Network != "east" || k.Port != 80 || !x.ill {
				return Health{}, false
			}
			return Health{Exceptions: []mesh.EndpointID{pod.Endpoint}}, true
		}
		p := New(c)
		tell(t, p, s, pod, epoch, x.ways...)
		r := p.AskedPod(x.asked, s, "", x.o, "connect", epoch.Add(time.Second))
		back := len(r.Edges) == 1 && r.Edges[0].Edge == health.EdgeReadmitted && r.Edges[0].Workload == pod.UID
		st := p.PodBelief(health.Key{Endpoint: pod.Endpoint, Port: 8080}, epoch.Add(time.Second))
		if back != x.back || r.Out != x.waits || st.Phase != x.phases {
			t.Errorf("%s: %+v, and it is %v; want back %v, out for the lack of an answer %v, %v", x.name, r, st.Phase, x.back, x.waits, x.phases)
		}
	}
}

// One failure of two that the threshold asks for stays one, whatever questions find: who
// answers them and no connection is out all the same.
func TestAnAnswerForgivesNoFailureOfAPodThatIsNotOut(t *testing.T) {
	s := layout{distribution: "Any", east: 2}.snapshot(t, 1)
	pod, p := s.Workload("east-00000"), New(defaults())
	for range 2 {
		tell(t, p, s, pod, epoch, unanswered)
		p.AskedPod(pod, s, "", health.Success, "", epoch)
	}
	if st := p.PodBelief(health.Key{Endpoint: pod.Endpoint, Port: 8080}, epoch); st.Ejections != 1 {
		t.Errorf("ejected %d times after two failures in a row; want once", st.Ejections)
	}
}

// tellGateway has connections through gateways fail there, one after the other.
func tellGateway(t *testing.T, p *Picker, s *mesh.Snapshot, now time.Time, n int) {
	t.Helper()
	for range n {
		c, err := p.Pick(resolve(t, p, s, now), Tried{}, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		p.Done(&c, Outcome{At: AtGateway, Fault: true, Reason: "connect"}, now)
	}
}

func TestAnAnswerForgivesNoFailureOfAGatewayThatIsNotOut(t *testing.T) {
	s, p := layout{distribution: "Any", west: 1, gateways: 1}.snapshot(t, 1), New(defaults())
	for range 2 {
		tellGateway(t, p, s, epoch, 1)
		p.AskedGateway("west/gw-1", health.Success, "", "", epoch)
	}
	if st := p.GatewayBelief("west/gw-1", epoch); st.Ejections != 1 {
		t.Errorf("ejected %d times after two failures in a row; want once", st.Ejections)
	}
}

// A pod whose packets do not get to a gateway, as its network policy forbids it, does not keep that from others.
func TestAGatewayThatAPodDoesNotReachIsBackWithEachAnswer(t *testing.T) {
	s, p := layout{distribution: "Any", west: 1, gateways: 1}.snapshot(t, 1), New(defaults())
	for i := range 100 {
		now := epoch.Add(time.Duration(i) * time.Second)
		for range 2 {
			c, err := p.Pick(resolve(t, p, s, now), Tried{}, nil, now)
			if err != nil {
				t.Fatal(err)
			}
			p.Done(&c, Outcome{At: AtGateway, Fault: true, Reason: "connect", Unreached: true}, now)
		}
		if r := p.AskedGateway("west/gw-1", health.Success, "", "", now); r.Out || len(r.Edges) != 1 {
			t.Fatalf("after %d ejections an answer leaves it out: %+v", i+1, r)
		}
	}
}

// A gateway that answers each question and no connection comes back once a minute in the end.
func TestAGatewayThatAnswersQuestionsAloneIsHeldBack(t *testing.T) {
	s, p, back := layout{distribution: "Any", west: 1, gateways: 1}.snapshot(t, 1), New(defaults()), 0
	var first time.Duration
	for at := time.Duration(0); at < time.Hour; at += 100 * time.Millisecond {
		now := epoch.Add(at)
		if b := p.GatewayBelief("west/gw-1", now); b.Phase == health.Healthy {
			tellGateway(t, p, s, now, 2)
		}
		r := p.AskedGateway("west/gw-1", health.Success, "", "", now)
		if r.Out && !r.By.After(now) {
			t.Fatalf("after %v: out until %v, which is over", at, r.By)
		}
		if len(r.Edges) > 0 {
			if back++; back == 1 {
				first = at
			}
		}
	}
	if first != 0 || back < 50 || back > 70 {
		t.Errorf("back %d times in an hour, for the first time after %v; want about 65, and the first answer to count at once", back, first)
	}
}

// A pod that answers each question and no connection comes back once a minute in the end.
func TestAPodThatAnswersQuestionsAloneIsHeldBack(t *testing.T) {
	s := layout{distribution: "Any", east: 2}.snapshot(t, 1)
	pod, p, back := s.Workload("east-00000"), New(defaults()), 0
	var first time.Duration
	for at := time.Duration(0); at < time.Hour; at += 100 * time.Millisecond {
		now := epoch.Add(at)
		if b := p.PodBelief(health.Key{Endpoint: pod.Endpoint, Port: 8080}, now); b.Phase == health.Healthy {
			tell(t, p, s, pod, now, unanswered, unanswered)
		}
		r := p.AskedPod(pod, s, "", health.Success, "", now)
		if r.Out && !r.By.After(now) {
			t.Fatalf("after %v: out until %v, which is over", at, r.By)
		}
		if len(r.Edges) > 0 {
			if back++; back == 1 {
				first = at
			}
		}
	}
	if first != 0 || back < 50 || back > 70 {
		t.Errorf("back %d times in an hour, for the first time after %v; want about 65, and the first answer to count at once", back, first)
	}
}
