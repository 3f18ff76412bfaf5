package controller

import (
	"context"
	"errors"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/notices"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
)

// tell writes Events at the objects that something is wrong with, until ctx ends.
func (c *Controller) tell(ctx context.Context) {
	var board notices.Board
	c.objects.everything()
	imported := map[notices.Object]bool{}
	for wait := time.Duration(0); ; {
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		case <-c.wrong:
			t.Stop()
		}
		now := time.Now()
		if c.synced() { // before that much is wrong that is only not known
			for o, list := range c.objects.take() {
				board.Set(o, list, now)
			}
		}
		c.setImports(&board, imported, now)
		var due []notices.Notice
		due, wait = board.Due(now)
		for _, n := range due {
			err := c.client.Tell(ctx, n, now)
			c.metrics.events.WithLabelValues(eventOutcome(err)).Inc()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && !errors.Is(err, owned.ErrGone):
				board.Failed(n, now)
			}
		}
		stand, _ := board.Len()
		c.metrics.noticed.Set(float64(stand))
	}
}

// setImports puts what is wrong with ServiceImports on the board; imported are those that
// something was wrong with.
func (c *Controller) setImports(board *notices.Board, imported map[notices.Object]bool, now time.Time) {
	c.mu.Lock()
	problems := c.problems
	c.mu.Unlock()
	lists := map[notices.Object][]notices.Notice{}
	for _, p := range problems {
		if p.Exists {
			o := notices.Object{Kind: notices.ServiceImport, Namespace: p.Namespace, Name: p.Name.Name}
			lists[o] = append(lists[o], notices.Notice{Reason: p.Reason, Message: p.Message})
		}
	}
	for o := range imported {
		if len(lists[o]) == 0 {
			board.Set(o, nil, now)
			delete(imported, o)
		}
	}
	for o, list := range lists {
		board.Set(o, list, now)
		imported[o] = true
	}
}

func eventOutcome(err error) string {
	if err == nil {
		return "done"
	}
	return outcome(err)
}
