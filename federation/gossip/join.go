package gossip

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// joins are the pauses between exchanges with a peer that cannot be joined, and
// before the second with one that can.
var joins = backoff.Backoff{First: 50 * time.Millisecond, Limit: time.Second}

// joiner looks for peers that discovery lists and that are not alive, for as
// long as it runs, each with its own backoff: memberlist itself gives up on
// the dead. It also exchanges full state with peers that packets could not
// reach for a while.
type joiner struct {
	federation *Federation
	list       *memberlist.Memberlist
	peers      map[string]*candidate
	next       time.Time // of the periodic exchange with one member
	done       chan joined
	wg         sync.WaitGroup
}

// candidate is what the joiner knows of one peer.
type candidate struct {
	busy   bool // an exchange is under way
	repair bool // packets were lost
	at     time.Time
	failed int // exchanges in a row
}

type joined struct {
	name string
	err  error
}

// join runs a joiner until ctx ends.
func (f *Federation) join(ctx context.Context) {
	j := &joiner{federation: f, list: f.list.Load(), peers: map[string]*candidate{}, done: make(chan joined, 16)}
	defer j.wg.Wait()
	j.next = time.Now().Add(backoff.Jitter(f.cfg.PushPullInterval))
	tick := time.NewTicker(joins.First)
	defer tick.Stop()
	for ctx.Err() == nil {
		j.round(ctx, time.Now())
		select {
		case <-ctx.Done():
		case d := <-j.done:
			j.finish(d)
		case name := <-f.repair:
			if c := j.peers[name]; c != nil {
				c.repair = true
			}
		case <-tick.C:
		}
	}
}

// round starts an exchange with every peer that is due.
func (j *joiner) round(ctx context.Context, now time.Time) {
	f := j.federation
	alive := map[string]bool{}
	for _, n := range j.list.Members() {
		alive[n.Name] = true
	}
	listed := map[string]*candidate{}
	var members []string
	for _, g := range f.cfg.Peers() {
		name := federation.OriginName(g.Network, g.Name)
		c := j.peers[name]
		if c == nil {
			c = &candidate{}
		}
		listed[name] = c
		switch {
		case c.busy:
		case alive[name] && !c.repair:
			c.at, c.failed = time.Time{}, 0
			members = append(members, name)
		case !now.Before(c.at):
			c.busy = true
			j.wg.Go(func() { j.exchange(ctx, g, name) })
		}
	}
	j.peers = listed
	if len(members) > 0 && now.After(j.next) {
		// Whatever gossip has missed is mended by this, next round.
		listed[members[rand.IntN(len(members))]].repair = true
		j.next = now.Add(f.cfg.PushPullInterval)
	}
}

// exchange swaps full state with g.
func (j *joiner) exchange(ctx context.Context, g *mesh.Gateway, name string) {
	_, err := j.list.Join([]string{dialAddress(g).String()})
	select {
	case j.done <- joined{name, err}:
	case <-ctx.Done():
	}
}

// finish sets the next attempt. After a long cut both sides believe each other
// dead: the first exchange tells them so and the second, soon after, brings
// the answers.
func (j *joiner) finish(d joined) {
	f := j.federation
	c := j.peers[d.name]
	if c == nil {
		return // discovery has dropped it meanwhile
	}
	c.busy = false
	if d.err == nil {
		f.cfg.Metrics.Joins.WithLabelValues("ok").Inc()
		c.repair, c.failed = false, 0
	} else {
		f.cfg.Metrics.Joins.WithLabelValues("failed").Inc()
		f.cfg.Log.Debug().Err(d.err).Str("member", d.name).Msg("federation peer not joined")
		c.failed++
	}
	c.at = time.Now().Add(joins.Next(c.failed))
}
