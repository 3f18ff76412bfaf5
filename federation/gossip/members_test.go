package gossip

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// packed is a map in MessagePack, as memberlist writes its messages: keys and
// values in turn, of which values are uint32, string or []byte.
func packed(kind byte, fields ...any) []byte {
	str := func(b []byte, s string) []byte {
		if len(s) < 32 {
			return append(append(b, 0xa0|byte(len(s))), s...)
		}
		return append(append(b, 0xda, byte(len(s)>>8), byte(len(s))), s...)
	}
	b := []byte{kind, 0x80 | byte(len(fields)/2)}
	for i, f := range fields {
		switch v := f.(type) {
		case int:
			b = append(b, 0xce, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
		case string:
			b = str(b, v)
		case []byte:
			b = str(b, string(v))
		default:
			panic(fmt.Sprintf("field %d is a %T", i, f))
		}
	}
	return b
}

func aliveMessage(name string) []byte {
	return packed(typeAlive, "Incarnation", 1, "Node", name, "Addr", []byte(nowhere.IP.To4()), "Port", nowhere.Port, "Vsn", []byte{1, 5, 2, 0, 0, 0})
}

func deadMessage(name, by string) []byte {
	return packed(typeDead, "Incarnation", 1<<31-1, "Node", name, "From", by)
}

func instanceOf(n int) (id record.Instance) {
	copy(id[:], fmt.Sprintf("%016d", n))
	return id
}

// held is how many members memberlist remembers, the dead included.
func (s *site) held() (n int) {
	m := s.federation.members
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, known := range m.known {
		n += len(known)
	}
	return n
}

func (s *site) holdsAlive(o *site) bool {
	return s.federation.members.alive(o.Network+"/"+o.Name, o.federation.Instance())
}

func TestMembersThatDiscoveryDoesNotVouchForAreRefused(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		f := sites[0].federation
		id, west := instanceOf(1), sites[2].federation.Instance()
		good := func() *memberlist.Node {
			return &memberlist.Node{Name: memberName("west/gw-1", id), Addr: nowhere.IP.To4(), Port: uint16(nowhere.Port), PMin: 1, PMax: 5, PCur: 2}
		}
		for _, c := range []struct {
			name, reason string
			change       func(*memberlist.Node)
		}{
			{"a gateway that nobody lists", "identity", func(n *memberlist.Node) { n.Name = memberName("west/gw-9", id) }},
			{"an instance that is connected as another gateway", "identity", func(n *memberlist.Node) { n.Name = memberName("east/gw-2", west) }},
			{"a gateway for an instance", "malformed", func(n *memberlist.Node) { n.Name = "west/gw-1" }},
			{"an absurd name", "malformed", func(n *memberlist.Node) { n.Name = strings.Repeat("x", 1<<20) }},
			{"another spelling of an instance", "malformed", func(n *memberlist.Node) { n.Name = "west/gw-1@" + strings.Repeat("A", 32) }},
			{"metadata", "malformed", func(n *memberlist.Node) { n.Meta = []byte("x") }},
			{"an address of its own", "malformed", func(n *memberlist.Node) { n.Addr = []byte{10, 0, 0, 1} }},
			{"a protocol that we do not speak", "malformed", func(n *memberlist.Node) { n.PMin = 3 }},
			{"another delegate", "malformed", func(n *memberlist.Node) { n.DMin = 1 }},
		} {
			n := good()
			c.change(n)
			before := rejected(sites[0].metrics, c.reason)
			if err := f.members.NotifyAlive(n); err == nil {
				t.Errorf("%s is a member", c.name)
			} else if len(err.Error()) > 400 {
				t.Errorf("%s: an error of %d bytes", c.name, len(err.Error()))
			}
			if rejected(sites[0].metrics, c.reason) == before {
				t.Errorf("%s is not counted as %s", c.name, c.reason)
			}
		}
		if err := f.members.NotifyAlive(good()); err != nil {
			t.Errorf("a rightful one: %v", err)
		}
	})
}

// Whoever has a gateway's certificate can tell memberlist what it likes of
// others, in bounds; it takes nobody's edges and no place from who is connected.
func TestForgedMembersAndDeathsHarmNobody(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west", "north")
		victim := sites[0]
		conn := w.raw(victim, "gateway-west")
		_, hello := w.hello(conn, "west", "gw-1")
		conn.Write(hello)
		go func() { // what it is told
			for buf := make([]byte, 4096); ; {
				if _, err := conn.Read(buf); err != nil {
					return
				}
			}
		}()
		for n := range 10_000 {
			name := []string{"north/gw-1", "east/gw-2", "nowhere/gw-1"}[n%3]
			conn.Write(link.AppendFrame(nil, aliveMessage(memberName(name, instanceOf(n)))))
			if n%100 == 0 {
				time.Sleep(10 * time.Millisecond) // memberlist's own queue is bounded, too
			}
		}
		eventually(t, "strangers are members, as many as may be", func() bool { return victim.held() >= 2*maxStrangers })
		if held := victim.held(); held > 2*maxStrangers+len(sites) {
			t.Errorf("%d members are held", held)
		}
		if n := victim.federation.list.Load().NumMembers(); n > 2*maxStrangers+len(sites) {
			t.Errorf("memberlist holds %d members", n)
		}
		for _, s := range sites[1:] {
			by := memberName("west/gw-1", instanceOf(1))
			conn.Write(link.AppendFrame(nil, deadMessage(s.federation.member, by)))
		}
		eventually(t, "memberlist believes it", func() bool { return !victim.holdsAlive(sites[4]) })
		for i := range uint32(8) {
			sites[4].publish(i)
			took := eventually(t, "an edge of one called dead arrives", func() bool { return victim.believes("north", i) })
			victim.publish(i)
			took += eventually(t, "and the other way", func() bool { return sites[4].believes("east", i) })
			if took > 10*time.Millisecond {
				t.Errorf("edges took %v", took)
			}
			time.Sleep(time.Second)
		}
		young := w.start(sites[4].Gateway, sites[4].relay)
		took := eventually(t, "a new instance is a member all the same", func() bool { return victim.holdsAlive(young) })
		if took > 10*time.Second { // the strangers' places are free after a minute
			t.Errorf("a new instance was a member after %v", took)
		}
		conn.Close()
	})
}

func TestPacketsThatMemberlistIsNotToSeeAreRefused(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		victim, other := sites[0], sites[2].federation.Instance()
		ack, err := proto.Marshal(&federationpb.Message{Message: &federationpb.Message_Ack{Ack: &federationpb.Ack{Instance: make([]byte, 16), Count: 1 << 60}}})
		if err != nil {
			t.Fatal(err)
		}
		user := append(append([]byte{typeUser}, other[:]...), ack...)
		compound := append([]byte{typeCompound, 1, byte(len(user) >> 8), byte(len(user))}, user...)
		flood := append([]byte{typeCompound, 255}, make([]byte, 0, 1024)...)
		for range 255 {
			flood = append(flood, 0, 1)
		}
		flood = append(flood, slices.Repeat([]byte{typeIndirectPing}, 255)...)
		for _, c := range []struct {
			name, reason string
			packet       []byte
		}{
			{"another one's name in front", "identity", user},
			{"the same in a compound message", "identity", compound},
			{"the same with a checksum", "identity", append([]byte{typeChecked, 0, 0, 0, 0}, compound...)},
			{"no name in front", "identity", []byte{typeUser, 1, 2, 3}},
			{"compression", "malformed", []byte{9, 1, 2, 3}},
			{"encryption", "malformed", []byte{10, 1, 2, 3}},
			{"a label", "malformed", []byte{244, 1, 2, 3}},
			{"nesting", "malformed", append([]byte{typeCompound, 1, byte(len(compound) >> 8), byte(len(compound))}, compound...)},
			{"a checksum alone", "malformed", []byte{typeChecked, 0, 0, 0, 0}},
			{"a compound message that is cut off", "malformed", []byte{typeCompound, 3, 0, 1}},
			{"a part that is cut off", "malformed", []byte{typeCompound, 1, 1, 0, typePing}},
			{"an empty part", "malformed", []byte{typeCompound, 1, 0, 0}},
			{"a long name", "oversized", aliveMessage(strings.Repeat("x", 2000))},
			{"a long packet", "oversized", make([]byte, maxPacket+1)},
			{"a flood of probes for others", "full", flood},
		} {
			before := rejected(victim.metrics, c.reason)
			conn := w.raw(victim, "gateway-west")
			_, hello := w.hello(conn, "west", "gw-1")
			conn.Write(link.AppendFrame(hello, c.packet))
			eventually(t, c.name+" is counted as "+c.reason, func() bool { return rejected(victim.metrics, c.reason) > before })
			conn.Close()
		}
	})
}

func TestStreamsThatAnnounceTooMuchAreRefused(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west")
		victim := sites[0]
		filler := make([]byte, 64)
		for name, bytes := range map[string][]byte{
			"a million members":      append(packed(typeState, "Nodes", 1<<20, "UserStateLen", 0, "Join", 1), filler...),
			"user state":             append(packed(typeState, "Nodes", 1, "UserStateLen", 20<<20, "Join", 1), filler...),
			"a second word on it":    append(packed(typeState, "Nodes", 1, "Join", 1, "Nodes", 1<<20), filler...),
			"a header of other keys": append(packed(typeState, "Nodes", 1, "Join", 1, "Else", 1), filler...),
			"a user message":         append(packed(typeUser, "UserMsgLen", 20<<20), filler...),
			"compression":            append(packed(9, "Algo", 0), filler...),
			"no map":                 append([]byte{typeState, 0x93}, filler...),
		} {
			before := rejected(victim.metrics, "malformed")
			conn := w.raw(victim, "gateway-west")
			_, hello := w.hello(conn, "west", "gw-1")
			hello[0] = kindStream
			conn.Write(append(hello, bytes...))
			eventually(t, name+" is counted", func() bool { return rejected(victim.metrics, "malformed") > before })
			if _, err := link.ReadFrame(conn, maxIntroduction, nil); err != nil {
				t.Errorf("%s: no introduction in return: %v", name, err)
			}
			conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			for buf := make([]byte, 4096); ; {
				if _, err := conn.Read(buf); err != nil {
					break
				}
			}
			conn.Close()
		}
		late := w.start(sites[1].Gateway, sites[1].restart())
		eventually(t, "others are members as before", func() bool { return victim.holdsAlive(late) && late.holdsAlive(victim) })
	})
}

// What discovery no longer lists is no member; what it lists again is one again.
func TestMembersAreThoseThatDiscoveryLists(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.add("east", "gw-1")
		w.add("west", "gw-1")
		w.add("north", "gw-1")
		relays, gateways := w.relays(), w.all()
		var sites []*site
		for _, g := range gateways {
			sites = append(sites, w.start(g, relays[g]))
		}
		eventuallyMembers(t, sites)
		w.mu.Lock()
		w.gateways = gateways[:2]
		w.mu.Unlock()
		eventually(t, "two are left", func() bool { return len(sites[0].federation.Members()) == 2 && len(sites[1].federation.Members()) == 2 })
		time.Sleep(time.Minute)
		w.mu.Lock()
		w.gateways = gateways
		w.mu.Unlock()
		took := eventuallyMembers(t, sites)
		if took > 10*time.Second {
			t.Errorf("all members again after %v", took)
		}
	})
}

// The death of an instance is noticed though its heartbeats are not missed yet:
// it leaves. One that is killed is noticed by probes.
func TestTheDeadAreNoMembers(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east", "west", "north")
		sites[1].stop()
		believed := func() (by int) {
			for _, s := range sites[2:] {
				if s.holdsAlive(sites[1]) || len(s.federation.Members()) != 5 {
					by++
				}
			}
			return by
		}
		// Each that hears it tells three of the four others at once, drawn evenly: one in a
		// hundred times one of them is not told, and finds it by probes.
		took := eventually(t, "who left is no member of three of four", func() bool { return believed() <= 1 })
		if took > time.Second {
			t.Errorf("a leave was known after %v", took)
		}
		if took := eventually(t, "who left is nobody's member", func() bool { return believed() == 0 }); took > 15*time.Second {
			t.Errorf("a leave was known to all after %v", took)
		}
		sites[3].relay.set(swallow)
		sites[3].cancel()
		took = eventually(t, "who was killed is no member", func() bool {
			return !slices.ContainsFunc([]*site{sites[0], sites[2], sites[4], sites[5]}, func(s *site) bool { return s.holdsAlive(sites[3]) })
		})
		if took > 15*time.Second {
			t.Errorf("a death was known after %v", took)
		}
		t.Logf("death known after %v", took)
	})
}
