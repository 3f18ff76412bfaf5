package gossip

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	directAll  = 16       // members up to which an edge is sent to each at once
	directSome = 8        // how many are told at once in a larger federation
	edgeBytes  = 40 << 10 // of records in one edge: fits a packet with its chain
	maxQueued  = 1024     // broadcasts that wait to be passed on
)

// receive verifies and merges what comes in, until ctx ends.
func (f *Federation) receive(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-f.inbox:
			envelopes, err := unmarshalEnvelopes(m.body)
			f.open(ctx, envelopes, err, m.received, true)
		case m := <-f.states:
			envelopes, err := unpackState(m.body)
			f.open(ctx, envelopes, err, m.received, false)
			f.setSynced()
		}
	}
}

// open merges envelopes. Edges that are news are passed on.
func (f *Federation) open(ctx context.Context, envelopes []*federationpb.Envelope, err error, received time.Time, edge bool) {
	if err != nil {
		f.refused("", err)
		return
	}
	var svid *identity.SVID
	for _, e := range envelopes {
		d := digestOf(e)
		if f.archive.knows(d) {
			f.cfg.Metrics.Records.WithLabelValues(federation.Duplicate.String()).Inc()
			continue
		}
		if svid == nil {
			if svid, err = f.cfg.Identity.Get(ctx, f.cfg.Self); err != nil {
				f.cfg.Log.Warn().Err(err).Msg("federation records not verified")
				return
			}
		}
		if news := f.merge(e, d, svid, received); news && edge {
			f.enqueue(e, received)
		}
	}
}

// merge verifies one envelope and merges its records; it says whether there
// was a new fact among them.
func (f *Federation) merge(e *federationpb.Envelope, d digest, svid *identity.SVID, received time.Time) (news bool) {
	now := time.Now()
	e = aged(e, now.Sub(received))
	records, by, err := f.verifier.open(e, svid.Bundle, now)
	if err != nil {
		f.refused(by.String(), err)
		return false
	}
	gateways := slices.Concat(f.cfg.Peers(), []*mesh.Gateway{f.self()})
	for _, r := range records {
		if err := federation.Owns(by, r, gateways); err != nil {
			f.refused(by.String(), err)
			return false
		}
	}
	if len(records) > 0 && records[0].Origin.Name == f.name {
		// An echo of our own words. It only matters if it is ahead of us.
		for _, r := range records {
			f.cfg.Ledger.MergeAll(f.journal.outlive(r, now))
		}
		return false
	}
	outcomes := f.cfg.Ledger.MergeAll(records)
	for i, outcome := range outcomes {
		f.cfg.Metrics.Records.WithLabelValues(outcome.String()).Inc()
		if outcome == federation.Full {
			f.refused(records[i].Origin.Name, peer.ErrFull)
		}
		news = news || outcome == federation.Newer
	}
	f.archive.keep(e, d, now, records, outcomes)
	return news
}

// self is this gateway as discovery would describe it.
func (f *Federation) self() *mesh.Gateway {
	return &mesh.Gateway{Name: f.cfg.Name, Network: f.cfg.Network, Identity: f.cfg.Self}
}

func (f *Federation) refused(by string, err error) {
	reason := rejection(err)
	if reason == "" {
		reason = "malformed"
	}
	f.cfg.Metrics.Rejected.WithLabelValues(reason).Inc()
	f.once.Warn(reason+"/"+by, "federation records refused", err, func(e *zerolog.Event) {
		e.Str("signer", by).Str("reason", reason)
	})
}

// enqueue passes an envelope on by gossip.
func (f *Federation) enqueue(e *federationpb.Envelope, since time.Time) {
	f.queue.QueueBroadcast(&broadcast{e, since})
	f.queue.Prune(maxQueued)
}

// publish signs and sends what the journal has, until ctx ends.
func (f *Federation) publish(ctx context.Context) {
	refresh := time.NewTicker(f.cfg.RefreshInterval)
	defer refresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-refresh.C:
			f.cfg.Ledger.MergeAll(f.journal.refresh(time.Now()))
		case <-f.journal.signal:
			if err := f.send(ctx); err != nil {
				f.once.Warn("sign", "federation records not sent", err, func(*zerolog.Event) {})
				if !link.Pause(ctx, 500*time.Millisecond) {
					return
				}
			}
		}
	}
}

func (f *Federation) send(ctx context.Context) error {
	now := time.Now()
	records := f.journal.take(now)
	if len(records) == 0 {
		return nil
	}
	svid, err := f.cfg.Identity.Get(ctx, f.cfg.Self)
	if err != nil {
		f.journal.untake(records)
		return err
	}
	for _, part := range federation.Split(records, edgeBytes) {
		e, err := seal(svid, part)
		if err != nil {
			return err
		}
		if err := f.tell(e, now); err != nil {
			return err
		}
		f.enqueue(e, now)
	}
	return nil
}

// tell sends e to all other members, or to some if they are many.
func (f *Federation) tell(e *federationpb.Envelope, signed time.Time) error {
	b, err := marshalEnvelopes(aged(e, time.Since(signed)))
	if err != nil {
		return err
	}
	members := slices.DeleteFunc(f.Members(), func(name string) bool { return name == f.name })
	if len(members) > directAll {
		rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		members = members[:directSome]
	}
	for _, name := range members {
		g := f.transport.find(memberlist.Address{Name: name})
		if g == nil {
			continue // discovery has dropped it a moment ago
		}
		a := memberlist.Address{Name: name, Addr: dialAddress(g).String()}
		if err := f.list.Load().SendToAddress(a, b); err != nil {
			f.cfg.Log.Debug().Err(err).Str("member", name).Msg("federation edge not sent")
		}
	}
	return nil
}

// keepHouse expires records, ends lanes to gateways that are gone, and bounds
// the wait for the first exchange.
func (f *Federation) keepHouse(ctx context.Context) {
	start := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for round := 0; ; round++ {
		if len(f.cfg.Peers()) == 0 || time.Since(start) > f.cfg.SyncWait {
			f.setSynced()
		}
		if round%10 == 0 {
			f.cfg.Ledger.Expire()
			f.transport.prune()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
