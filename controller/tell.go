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
	var paused time.Time // until when nothing is written
	failures := 0
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
			c.setObjects(&board, now)
		}
		c.setImports(&board, imported, now)
		stand, left := board.Len()
		c.metrics.noticed.Set(float64(stand))
		c.metrics.unsaid.Set(float64(left))
		if wait = paused.Sub(now); wait > 0 {
			continue
		}
		var due []notices.Notice
		due, wait = board.Due(now)
		for i, n := range due {
			err := c.client.Tell(ctx, n, now)
			c.metrics.events.WithLabelValues(eventOutcome(err)).Inc()
			if ctx.Err() != nil {
				return
			}
			if err == nil || errors.Is(err, owned.ErrGone) {
				failures = 0
				continue
			}
			if owned.OfOne(err) && !errors.Is(err, owned.ErrNoRight) {
				board.Failed(n, now)
				continue
			}
			failures++ // of the others it would be the same
			wait = rights.Next(failures)
			paused = now.Add(wait)
			for _, n := range due[i:] {
				board.Unsaid(n, paused)
			}
			break
		}
	}
}

// setObjects puts what is wrong with objects of the cluster on the board, if it is not what
// was before, or there is room now for what there was none.
func (c *Controller) setObjects(board *notices.Board, now time.Time) {
	const rounds = 10 // each has room for some more, as a rule for all
	for range rounds {
		for o, list := range c.objects.take() {
			board.Set(o, list, now)
		}
		waiting := board.Waiting()
		if len(waiting) == 0 {
			return
		}
		for _, o := range waiting {
			c.objects.again(o)
		}
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
