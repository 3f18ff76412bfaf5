package healthstream

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// uplink is what one attached stream still has to send. It holds names, not
// values: what is sent is what is true then, so that a stream that is behind sends
// less, and never something older after something newer.
type uplink struct {
	gateway string
	address netip.AddrPort
	conn    *frames
	signal  chan struct{}
	kept    int             // bytes of what it says, guarded by services.mu
	holds   map[string]bool // networks of which it knows all that there is to know, guarded by services.mu
	// missed are networks that discovery did not list when it spoke of them, at most
	// maxNetworks, guarded by services.mu: one stream cannot fill them for others.
	missed map[string]struct{}
	// notices are what the gateway says is wrong there; guarded by Client.mu.
	notices []Notice

	mu       sync.Mutex
	observes bool // says nothing of pods
	begun    bool // and has said what it knows
	dirty    map[Target]struct{}
	whole    bool
	draining bool
	wants    map[string]bool // service → to be followed, or not any more
	leads    *bool           // to be told so; nil: nothing to say
}

func newUplink(gateway string, c *frames) *uplink {
	// The first thing that a gateway gets is the full state.
	u := &uplink{gateway: gateway, conn: c, signal: make(chan struct{}, 1), dirty: map[Target]struct{}{}, whole: true, wants: map[string]bool{}, missed: map[string]struct{}{}}
	u.signal <- struct{}{}
	return u
}

// changed notes that there is news of targets; beyond [MaxFacts] all are sent.
func (u *uplink) changed(targets []Target) {
	u.mu.Lock()
	for _, t := range targets {
		u.dirty[t] = struct{}{}
	}
	if len(u.dirty) > MaxFacts {
		u.whole = true
		clear(u.dirty)
	}
	u.mu.Unlock()
	u.nudge()
}

// release notes that view is kept no more; the caller holds the lock of services.
func (u *uplink) release(view map[string]told) {
	for _, x := range view {
		u.kept -= x.size
	}
}

func (u *uplink) subscribe(service string, on bool) {
	u.mu.Lock()
	u.wants[service] = on
	u.mu.Unlock()
	u.nudge()
}

// lead notes that the gateway is to tell of discovery, or not any more.
func (u *uplink) lead(on bool) {
	u.mu.Lock()
	u.leads = &on
	u.mu.Unlock()
	u.nudge()
}

func (u *uplink) drain() {
	u.mu.Lock()
	u.draining, u.whole = true, true
	u.mu.Unlock()
	u.nudge()
}

func (u *uplink) nudge() {
	select {
	case u.signal <- struct{}{}:
	default:
	}
}

// take makes the messages that are due.
func (u *uplink) take(facts Facts) []*pb.StreamMessage {
	u.mu.Lock()
	targets, whole, draining := slices.SortedFunc(maps.Keys(u.dirty), compareTargets), u.whole, u.draining
	var sub pb.Subscribe
	for name, on := range u.wants {
		if on {
			sub.Add = append(sub.Add, name)
		} else {
			sub.Remove = append(sub.Remove, name)
		}
	}
	leads := u.leads
	clear(u.dirty)
	clear(u.wants)
	u.whole, u.leads = false, nil
	observes, begun := u.observes, u.begun
	u.begun = true
	u.mu.Unlock()
	if observes {
		return subscribes(&sub, !begun)
	}
	var out []*pb.StreamMessage
	if r := (&pb.Report{Whole: whole, Draining: draining}); whole || len(targets) > 0 {
		if whole {
			r.Ports = wholeOf(facts.All())
		} else {
			r.Ports, r.Forgotten = some(facts, targets)
		}
		out = append(out, report(r))
	}
	if len(sub.Add)+len(sub.Remove) > 0 {
		out = append(out, &pb.StreamMessage{Message: &pb.StreamMessage_Subscribe{Subscribe: &sub}})
	}
	if leads != nil { // behind what is followed, which it is told of at once
		out = append(out, &pb.StreamMessage{Message: &pb.StreamMessage_Lead{Lead: &pb.Lead{On: *leads}}})
	}
	return out
}

// wholeOf encodes all facts, the sick ones first if they are too many.
func wholeOf(facts []Fact) []*pb.PortHealth {
	slices.SortStableFunc(facts, func(a, b Fact) int { return int(min(b.State, 1)) - int(min(a.State, 1)) })
	var out []*pb.PortHealth
	for _, f := range facts[:min(len(facts), MaxFacts)] {
		out = append(out, factToWire(f))
	}
	return out
}

// some encodes what there is to say of targets, and of which there is nothing any more.
func some(facts Facts, targets []Target) (ports []*pb.PortHealth, forgotten []*pb.Target) {
	var gone []Target
	for _, t := range targets {
		if f, ok := facts.Fact(t); ok {
			ports = append(ports, factToWire(f))
		} else {
			gone = append(gone, t)
		}
	}
	return ports, targetsToWire(gone)
}

// run writes until ctx ends or the stream fails.
func (u *uplink) run(ctx context.Context, every time.Duration, facts Facts) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var messages []*pb.StreamMessage
		select {
		case <-ctx.Done():
			return nil
		case <-u.signal:
			messages = u.take(facts)
		case <-tick.C:
			messages = []*pb.StreamMessage{beat()}
		}
		for _, m := range messages {
			if err := u.conn.write(m); err != nil {
				return fmt.Errorf("write to gateway: %w", err)
			}
		}
	}
}
