package gossip

import (
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// delegate is the Federation as memberlist sees it. None of its methods waits:
// they run on memberlist's loops, some under its locks.
type delegate Federation

var (
	_ memberlist.Delegate      = (*delegate)(nil)
	_ memberlist.AliveDelegate = (*delegate)(nil)
	_ memberlist.EventDelegate = (*delegate)(nil)
)

// message is what came in and waits to be verified.
type message struct {
	body     []byte
	received time.Time
}

func (d *delegate) NodeMeta(int) []byte { return nil }

func (d *delegate) NotifyMsg(b []byte) {
	select {
	case d.inbox <- message{append([]byte(nil), b...), time.Now()}:
	default:
		d.cfg.Metrics.Dropped.WithLabelValues("inbox").Inc()
	}
}

func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.queue.GetBroadcasts(overhead, limit)
}

// LocalState is called by an exchange of full state, on its own goroutine.
func (d *delegate) LocalState(bool) []byte { return (*Federation)(d).state() }

func (d *delegate) MergeRemoteState(b []byte, _ bool) {
	select {
	case d.states <- message{append([]byte(nil), b...), time.Now()}:
	default:
		d.cfg.Metrics.Dropped.WithLabelValues("states").Inc()
	}
}

// NotifyAlive keeps strangers out: a member that discovery does not list as a
// gateway is not one, whoever vouches for it.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.name {
		return nil
	}
	for _, g := range d.cfg.Peers() {
		if federation.OriginName(g.Network, g.Name) == n.Name {
			return nil
		}
	}
	return fmt.Errorf("discovery knows no gateway %q", n.Name)
}

func (d *delegate) NotifyJoin(n *memberlist.Node) {
	d.cfg.Metrics.Members.Inc()
	if n.Name != d.name {
		d.cfg.Log.Info().Str("member", n.Name).Msg("federation member joined")
	}
}

func (d *delegate) NotifyLeave(n *memberlist.Node) {
	d.cfg.Metrics.Members.Dec()
	if n.Name != d.name {
		d.cfg.Log.Info().Str("member", n.Name).Msg("federation member lost")
	}
}

func (d *delegate) NotifyUpdate(*memberlist.Node) {}

// broadcast is an envelope that is passed on for a while. Its relay age is of
// fixed size on the wire, so its length does not change with time.
type broadcast struct {
	envelope *federationpb.Envelope
	since    time.Time // received, or signed
}

func (b *broadcast) Invalidates(memberlist.Broadcast) bool { return false }
func (b *broadcast) UniqueBroadcast()                      {}
func (b *broadcast) Finished()                             {}

func (b *broadcast) Message() []byte {
	m, err := marshalEnvelopes(aged(b.envelope, time.Since(b.since)))
	if err != nil {
		return nil // cannot be: it was marshalled before
	}
	return m
}

func marshalEnvelopes(envelopes ...*federationpb.Envelope) ([]byte, error) {
	return proto.Marshal(&federationpb.Envelopes{Envelopes: envelopes})
}
