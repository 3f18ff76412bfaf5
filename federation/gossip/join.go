package gossip

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// joins are the pauses between exchanges of members with a gateway. The second is
// soon: after a long cut each side holds the other for dead; the first exchange
// tells both, the second brings what they answer.
var joins = backoff.Backoff{First: 200 * time.Millisecond, Limit: 5 * time.Second}

// joinSpread is how long an exchange with a gateway waits while another one may
// tell of it: the first exchange brings all members.
const joinSpread = 2 * time.Second

// joiner exchanges members with gateways that we are connected to and whose
// instance is no living member: memberlist itself gives up on the dead.
type joiner struct {
	f     *Federation
	list  *memberlist.Memberlist
	tries map[string]*try // by gateway
	done  chan string
	wg    sync.WaitGroup
}

type try struct {
	busy bool
	at   time.Time
	made int
}

// join runs a joiner until ctx ends.
func (f *Federation) join(ctx context.Context, list *memberlist.Memberlist) {
	j := &joiner{f: f, list: list, tries: map[string]*try{}, done: make(chan string, 16)}
	defer j.wg.Wait()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		j.round(ctx, time.Now())
		select {
		case <-ctx.Done():
		case gateway := <-j.done:
			if t := j.tries[gateway]; t != nil {
				t.busy, t.at = false, time.Now().Add(joins.Next(t.made))
			}
		case <-tick.C:
		}
	}
}

// round begins an exchange with every gateway that is due.
func (j *joiner) round(ctx context.Context, now time.Time) {
	missing := j.f.transport.without(j.f.members.alive)
	for gateway, t := range j.tries {
		if !missing[gateway] && !t.busy {
			delete(j.tries, gateway)
		}
	}
	for gateway := range missing {
		g := j.f.gateway(gateway)
		if g == nil {
			continue
		}
		t := j.tries[gateway]
		if t == nil {
			t = &try{at: now}
			if len(j.tries) > 0 || j.list.NumMembers() > 1 {
				t.at = now.Add(rand.N(joinSpread))
			}
			j.tries[gateway] = t
		}
		if !t.busy && !now.Before(t.at) {
			t.busy = true
			t.made++
			j.wg.Go(func() { j.exchange(ctx, g, gateway) })
		}
	}
}

func (j *joiner) exchange(ctx context.Context, g *mesh.Gateway, gateway string) {
	if _, err := j.list.Join([]string{joinAddress(g)}); err != nil {
		j.f.cfg.Log.Debug().Err(err).Str("gateway", gateway).Msg("members not exchanged")
	}
	select {
	case j.done <- gateway:
	case <-ctx.Done():
	}
}
