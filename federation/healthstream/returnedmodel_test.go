package healthstream

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// process is one gateway process of east, and what it really leaves out: whom of them its
// record names, and when it comes to be heard, is another matter.
type process struct {
	Voice
	out      map[mesh.EndpointID]record.Cause
	truth    map[mesh.EndpointID]record.Cause // behind record
	record   record.Entry
	sequence uint64
	room     int    // for names
	heard    []byte // of it last
}

// heardWord is a word of a process that the node proxy has taken in, with the truth behind it.
type heardWord struct {
	at      time.Time
	of      *process
	gateway string
	counted map[mesh.EndpointID]time.Time // named when all together left it out: when last
	named   map[mesh.EndpointID]record.Cause
	unnamed bool
	out     map[mesh.EndpointID]record.Cause
}

type returnModel struct {
	words
	rng       *rand.Rand
	processes []*process
	links     map[string]*uplink
	last      map[record.Instance]uint64 // sequence that was heard
	heard     []*heardWord
	shown     map[mesh.EndpointID]time.Time // what was in Returned already
	left      map[mesh.EndpointID]time.Time // seen in exceptions, when last
	over      map[mesh.EndpointID]time.Time // when it was taken back last, or seen not ready or gone
	spent     map[mesh.EndpointID]time.Time // words that named it until then are of no account
	steps     []string
	next      byte
}

// say makes p's record anew: of those it leaves out it names as many as there is room for,
// any ones.
func (m *returnModel) say(p *process) {
	h := record.Health{Ready: 20, Healthy: 20 - uint32(len(p.out)), ReadyCapacity: 20, HealthyCapacity: 20 - uint32(len(p.out))}
	ids := slices.Sorted(maps.Keys(p.out))
	p.truth = maps.Clone(p.out)
	m.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for i, id := range ids {
		if i < p.room {
			h.Exceptions = append(h.Exceptions, record.Exception{Endpoint: id, Cause: p.out[id]})
		} else {
			h.Unnamed++
		}
	}
	e, err := record.Encode(record.HealthRecord(service, 80, h))
	if err != nil {
		m.t.Fatal(err)
	}
	if bytes.Equal(e.Body, p.record.Body) {
		return
	}
	p.sequence++
	e.Sequence = p.sequence
	p.record, p.Entries = e, []record.Entry{e}
}

// tell brings all that the processes say, by every stream.
func (m *returnModel) tell(whole bool) {
	var share Share
	share.Network = "east"
	for _, p := range m.processes {
		share.Instances = append(share.Instances, p.Voice)
	}
	b, err := decode(servicesMessage(appendService(nil, service, whole, false, [][]byte{encodeShare(share)})))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(m.links)) {
		if odd, err := m.take(m.links[name], b.GetServices()); err != nil || odd != 0 {
			m.t.Fatal(odd, err)
		}
	}
	if len(m.links) == 0 {
		return
	}
	for _, p := range m.processes {
		if m.last[p.Instance] == p.sequence {
			continue
		}
		m.last[p.Instance] = p.sequence
		if bytes.Equal(p.heard, p.record.Body) {
			continue // what it said meanwhile nobody has heard
		}
		p.heard = p.record.Body
		w := &heardWord{at: time.Now(), of: p, gateway: p.Gateway, counted: map[mesh.EndpointID]time.Time{}, out: p.truth, named: map[mesh.EndpointID]record.Cause{}}
		r, err := p.record.Decode()
		if err != nil {
			m.t.Fatal(err)
		}
		for _, x := range r.Health.Exceptions {
			w.named[x.Endpoint] = x.Cause
		}
		w.unnamed = r.Health.Unnamed > 0
		m.heard = append(m.heard, w)
	}
}

func (m *returnModel) step(format string, args ...any) {
	m.steps = append(m.steps, fmt.Sprintf(time.Now().Format("15:04:05.000 ")+format, args...))
}

func (m *returnModel) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf(format+"\n%s", append(args, strings.Join(m.steps, "\n"))...)
}

// check compares what is called taken back with all that was ever heard.
func (m *returnModel) check() {
	k, _ := m.get("east", service)
	now, returned := time.Now(), k.Returned[80]
	for id, at := range returned {
		if m.shown[id].Equal(at) {
			continue
		}
		m.shown[id], m.over[id] = at, now
		// Whoever says so left it out before, and leaves it out no more: in truth.
		if !slices.ContainsFunc(m.heard, func(w *heardWord) bool {
			_, still := w.out[id]
			return w.at.Equal(at) && !still && slices.ContainsFunc(m.heard, func(o *heardWord) bool {
				cause, named := o.named[id]
				return o.gateway == w.gateway && o.at.Before(at) && named && isFault(cause)
			})
		}) {
			m.fail("%d is taken back at %v by nobody who had left it out", id, at.Format("15:04:05.000"))
		}
		for _, p := range m.processes { // that are heard
			if _, out := p.out[id]; out && p.Live && m.last[p.Instance] == p.sequence && p.out[id] == record.Witness {
				m.fail("%d is taken back at %v, and %s leaves it out (%s)", id, at.Format("15:04:05.000"), p.Gateway, p.out[id])
			}
		}
	}
	for _, id := range k.Summaries[80].Exceptions {
		m.left[id] = now
		for _, p := range m.processes {
			for _, w := range slices.Backward(m.heard) {
				if w.of != p {
					continue
				}
				if cause, named := w.named[id]; named && isFault(cause) {
					w.counted[id] = now
				}
				break
			}
		}
	}
	for _, x := range together(k).Exceptions {
		if !isFault(x.Cause) {
			m.over[x.Endpoint] = now
		}
	}
	m.overdue(k, now)
}

func together(k Known) ledger.Health { h, _ := HealthOf(k.Deliveries, 80); return h }

// overdue looks for who is missing: nobody speaks who leaves out anybody, and one that had
// left it out was the last to say anything of it.
func (m *returnModel) overdue(k Known, now time.Time) {
	quiet := len(k.Deliveries) > 0 && !slices.ContainsFunc(k.Deliveries, func(d Delivery) bool {
		h, speaks := d.Health[80]
		return !d.Live || !speaks || len(h.Exceptions) > 0 || h.Unnamed > 0
	})
	for id := range m.left {
		var named, well time.Time
		by := map[string]bool{}
		for _, w := range m.heard {
			_, is := w.named[id]
			switch {
			case !w.counted[id].IsZero() && !w.at.After(m.spent[id]):
			case !w.counted[id].After(m.over[id]) && !w.at.After(m.over[id]):
			case !w.counted[id].IsZero():
				named, by[w.gateway] = w.at, true
			case !is && !w.unnamed && by[w.gateway] && !well.After(named):
				well = w.at
			}
		}
		switch {
		case named.IsZero() || !well.After(named):
		case now.Sub(well) >= returnedFor:
			m.over[id], m.spent[id] = now, named // it is too late to tell
		case quiet:
			m.fail("%v was left out until %v, is well since %v, and is not taken back", id, named.Format("15:04:05.000"), well.Format("15:04:05.000"))
		}
	}
}

func (m *returnModel) begin(gateway string) {
	m.next++
	p := &process{Voice: Voice{Instance: record.Instance{m.next}, Gateway: gateway, Live: true}, out: map[mesh.EndpointID]record.Cause{}, room: 3}
	m.say(p)
	m.processes = append(m.processes, p)
	m.step("%s begins as %d", gateway, m.next)
}

// Random schedules: several gateways with several processes each, that leave out more than
// they have room to name, fall silent, end and hand over; streams that end and begin; and
// minutes in which nothing is heard. Who is called taken back was, and who was is called so.
func TestWhoIsTakenBackWasAndOnlyThose(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 100
	}
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) { playReturns(t, seed) })
	}
}

func playReturns(t *testing.T, seed uint64) {
	m := &returnModel{words: newWords(t), rng: rand.New(rand.NewPCG(seed, 29)), links: map[string]*uplink{}, last: map[record.Instance]uint64{}, shown: map[mesh.EndpointID]time.Time{}, left: map[mesh.EndpointID]time.Time{}, over: map[mesh.EndpointID]time.Time{}, spent: map[mesh.EndpointID]time.Time{}}
	m.step("seed %d", seed)
	m.links["a"] = m.gateway("a")
	for _, g := range []string{"gw-1", "gw-2", "gw-3"}[:1+m.rng.IntN(3)] {
		m.begin(g)
	}
	for range 80 {
		time.Sleep(time.Duration(1 + m.rng.Int64N(int64(3*time.Second))))
		whole := m.act()
		m.tell(whole)
		m.check()
		m.lapse(time.Now())
		m.check()
	}
}

// act does something, and says whether a stream has begun by that.
func (m *returnModel) act() (whole bool) {
	var p *process
	if len(m.processes) > 0 {
		p = m.processes[m.rng.IntN(len(m.processes))]
	}
	switch n := m.rng.IntN(20); {
	case p == nil || n == 0 && len(m.processes) < 5:
		m.begin([]string{"gw-1", "gw-2", "gw-3"}[m.rng.IntN(3)])
	case n == 1:
		m.processes = slices.DeleteFunc(m.processes, func(o *process) bool { return o == p })
		m.step("%s ends", p.Gateway)
	case n <= 3:
		p.Live = !p.Live
		m.step("%s is live: %v", p.Gateway, p.Live)
	case n == 4:
		p.Draining = !p.Draining
		m.step("%s drains: %v", p.Gateway, p.Draining)
	case n == 5:
		for _, name := range slices.Sorted(maps.Keys(m.links)) {
			m.detach(m.links[name])
			delete(m.links, name)
		}
		m.step("no stream")
	case n == 6 && len(m.links) < 2:
		name := fmt.Sprint("s", len(m.steps))
		m.links[name] = m.gateway(name)
		m.step("a stream begins")
		return true
	case n == 7:
		m.step("a long time passes")
		for range 70 {
			time.Sleep(time.Second)
			m.lapse(time.Now())
		}
	case n == 8 || n == 9:
		for _, o := range m.processes {
			clear(o.out)
			m.say(o)
		}
		m.step("all say that all are well")
	case n <= 12:
		id := mesh.EndpointID(1 + m.rng.IntN(6))
		for _, o := range m.processes {
			if m.rng.IntN(4) > 0 {
				o.out[id] = record.Witness
				m.say(o)
			}
		}
		m.step("the witness of %d says that it is out", id)
	case n <= 15:
		clear(p.out)
		for id := range m.rng.IntN(6) {
			p.out[mesh.EndpointID(1+id)] = []record.Cause{record.Witness, record.Witness, record.Witness, record.Hop, record.NotReady, record.Gone}[m.rng.IntN(6)]
		}
		m.say(p)
		m.step("%s leaves out %v", p.Gateway, p.out)
	default:
		for _, id := range slices.Sorted(maps.Keys(p.out)) {
			if m.rng.IntN(2) == 0 {
				delete(p.out, id)
			}
		}
		m.say(p)
		m.step("%s leaves out %v", p.Gateway, p.out)
	}
	return false
}
