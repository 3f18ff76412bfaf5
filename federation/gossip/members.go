package gossip

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	maxStrangers = 16          // instances of one gateway that are members without a connection to us
	maxMembers   = 64          // instances of one gateway that are members
	forgetAfter  = time.Minute // memberlist has forgotten one that is dead for longer
)

// memberName is what memberlist calls an instance of a gateway (network/name). Were
// it the name of the gateway, two instances would refute each other for ever.
func memberName(gateway string, id record.Instance) string { return gateway + "@" + id.String() }

// splitMember takes a member's name apart.
func splitMember(name string) (gateway string, id record.Instance, err error) {
	k := strings.LastIndexByte(name, '@')
	if k < 0 || len(name)-k-1 != hex.EncodedLen(len(id)) {
		return "", id, fmt.Errorf("member %.80q: want network/gateway@instance", name)
	}
	if _, err := hex.Decode(id[:], []byte(name[k+1:])); err != nil || name[k+1:] != id.String() {
		return "", id, fmt.Errorf("member %.80q: instance: want 32 lower-case hexadecimal digits", name)
	}
	return name[:k], id, nil
}

// members is what memberlist has told of the others, and who may be one. Its
// methods are called under memberlist's lock and never wait.
type members struct {
	f       *Federation
	changed chan struct{}

	mu    sync.Mutex
	known map[string]map[record.Instance]*member // by gateway
}

type member struct {
	alive bool
	since time.Time
}

var (
	_ memberlist.Delegate      = (*members)(nil)
	_ memberlist.AliveDelegate = (*members)(nil)
	_ memberlist.EventDelegate = (*members)(nil)
)

func newMembers(f *Federation) *members {
	return &members{f: f, changed: make(chan struct{}, 1), known: map[string]map[record.Instance]*member{}}
}

// NodeMeta implements [memberlist.Delegate]: a member says nothing of itself but its name.
func (m *members) NodeMeta(int) []byte { return nil }

// NotifyMsg implements [memberlist.Delegate]. The inspector has seen to it that
// the sender is who it says.
func (m *members) NotifyMsg(b []byte) {
	var from record.Instance
	if len(b) > len(from) {
		copy(from[:], b)
		m.f.inbox.put(from, b[len(from):])
	}
}

// GetBroadcasts implements [memberlist.Delegate]: what we say goes to all at once.
func (m *members) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements [memberlist.Delegate]: digests do what it is for.
func (m *members) LocalState(bool) []byte { return nil }

// MergeRemoteState implements [memberlist.Delegate].
func (m *members) MergeRemoteState([]byte, bool) {}

// NotifyAlive implements [memberlist.AliveDelegate]: it keeps out whom discovery
// does not list, whoever vouches for them, and bounds the instances of each
// gateway. Strangers cannot take the places of those that are connected.
func (m *members) NotifyAlive(n *memberlist.Node) error {
	err := m.admit(n)
	if err != nil {
		reason := reasonOf(err)
		m.f.cfg.Metrics.Rejected.WithLabelValues(reason).Inc()
	}
	return err
}

func (m *members) admit(n *memberlist.Node) error {
	if n.Name == m.f.member {
		return nil
	}
	gateway, id, err := splitMember(n.Name)
	if err != nil {
		return &peer.MalformedError{Cause: err}
	}
	if len(n.Meta) > 0 || !n.Addr.Equal(nowhere.IP) || int(n.Port) != nowhere.Port || !speaks(n) {
		return &peer.MalformedError{Cause: fmt.Errorf("member %s with metadata of %d bytes, address %s, protocol %d (%d to %d)",
			n.Name, len(n.Meta), n.Address(), n.PCur, n.PMin, n.PMax)}
	}
	if m.f.gateway(gateway) == nil {
		return &peer.IdentityError{Cause: fmt.Errorf("discovery knows no gateway %.80q", gateway)}
	}
	connected := m.f.transport.gatewayOf(id)
	if connected != "" && connected != gateway {
		return &peer.IdentityError{Cause: fmt.Errorf("member %s is connected as %s", n.Name, connected)}
	}
	return m.enter(gateway, id, connected != "", time.Now())
}

// speaks says whether n speaks the protocol that all of us do. One who claims
// another one would keep the others from joining.
func speaks(n *memberlist.Node) bool {
	const p = memberlist.ProtocolVersion2Compatible
	return n.PCur == p && n.PMin <= p && n.PMax >= p && n.DMin == 0 && n.DMax == 0 && n.DCur == 0
}

func (m *members) enter(gateway string, id record.Instance, connected bool, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.known[gateway]
	if known == nil {
		known = map[record.Instance]*member{}
		m.known[gateway] = known
	}
	if known[id] != nil {
		return nil
	}
	prune(known, now)
	limit := maxStrangers
	if connected {
		limit = maxMembers
	}
	if len(known) >= limit {
		return fmt.Errorf("%d instances of gateway %s are members, the limit: %w", len(known), gateway, peer.ErrFull)
	}
	known[id] = &member{since: now}
	return nil
}

// NotifyJoin implements [memberlist.EventDelegate].
func (m *members) NotifyJoin(n *memberlist.Node) { m.set(n.Name, true) }

// NotifyLeave implements [memberlist.EventDelegate]. It ends no exchange with that
// instance: nobody signs that another one is dead. The connection knows by itself.
func (m *members) NotifyLeave(n *memberlist.Node) { m.set(n.Name, false) }

// NotifyUpdate implements [memberlist.EventDelegate].
func (m *members) NotifyUpdate(*memberlist.Node) {}

func (m *members) set(name string, alive bool) {
	gateway, id, err := splitMember(name)
	if err != nil || name == m.f.member {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[gateway] == nil {
		m.known[gateway] = map[record.Instance]*member{}
	}
	m.known[gateway][id] = &member{alive: alive, since: time.Now()}
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// alive says whether memberlist holds an instance of a gateway for alive.
func (m *members) alive(gateway string, id record.Instance) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.known[gateway][id]
	return s != nil && s.alive
}

// forget drops gateways that discovery does not list, once memberlist has
// forgotten all their instances.
func (m *members) forget(listed map[string]bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for gateway, known := range m.known {
		if listed[gateway] {
			continue
		}
		prune(known, now)
		if len(known) == 0 {
			delete(m.known, gateway)
		}
	}
}

func prune(known map[record.Instance]*member, now time.Time) {
	for id, s := range known {
		if !s.alive && now.Sub(s.since) > forgetAfter {
			delete(known, id)
		}
	}
}
