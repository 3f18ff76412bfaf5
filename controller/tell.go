package controller

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/notices"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
)

// tell writes Events at the objects that something is wrong with, until ctx ends.
func (c *Controller) tell(ctx context.Context) {
	var board notices.Board
	c.objects.everything()
	defer c.objects.rest()
	imported, faulty := map[notices.Object]bool{}, map[notices.Object]bool{}
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
		c.setFaults(&board, faulty, now)
		stand, left := board.Len()
		c.metrics.noticed.Set(float64(stand))
		c.metrics.unsaid.Set(float64(left))
		if wait = paused.Sub(now); wait > 0 {
			continue
		}
		var err error
		if wait, err = c.write(ctx, &board, now); ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			continue
		}
		failures++
		wait = rights.Next(failures)
		paused = now.Add(wait)
	}
}

// write writes what is due, and returns how long until more is. It fails when everything else
// would fail too.
func (c *Controller) write(ctx context.Context, board *notices.Board, now time.Time) (wait time.Duration, err error) {
	due, wait := board.Due(now)
	ended := board.Ended()
	for i, n := range due {
		err := c.client.Tell(ctx, n, now)
		if c.metrics.events.WithLabelValues(eventOutcome(err)).Inc(); err == nil || errors.Is(err, owned.ErrGone) {
			continue
		}
		if owned.OfOne(err) && !errors.Is(err, owned.ErrNoRight) {
			board.Failed(n, now)
			continue
		}
		for _, n := range due[i:] {
			board.Unsaid(n, now)
		}
		board.Keep(ended)
		return 0, err
	}
	for i, n := range ended {
		err := c.client.TakeBack(ctx, n, now)
		if c.metrics.events.WithLabelValues(eventOutcome(err)).Inc(); err == nil || owned.OfOne(err) && !errors.Is(err, owned.ErrNoRight) {
			continue
		}
		board.Keep(ended[i:])
		return 0, err
	}
	return wait, nil
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
	replace(board, lists, imported, now)
}

// setFaults puts what is wrong with processes and links on the board; faulty are the objects
// that it was told at.
func (c *Controller) setFaults(board *notices.Board, faulty map[notices.Object]bool, now time.Time) {
	c.mu.Lock()
	told := c.told
	c.mu.Unlock()
	replace(board, told, faulty, now)
}

// tellFaults takes what is to be told of processes and links.
func (c *Controller) tellFaults(told map[notices.Object][]notices.Notice) {
	for _, list := range told {
		slices.SortFunc(list, func(a, b notices.Notice) int { return strings.Compare(a.Message, b.Message) })
	}
	c.mu.Lock()
	same := maps.EqualFunc(told, c.told, slices.Equal)
	c.told = told
	c.mu.Unlock()
	if !same {
		nudge(c.wrong)
	}
}

// replace puts lists on the board in the place of what was said at the objects in said.
func replace(board *notices.Board, lists map[notices.Object][]notices.Notice, said map[notices.Object]bool, now time.Time) {
	for o := range said {
		if len(lists[o]) == 0 {
			board.Set(o, nil, now)
			delete(said, o)
		}
	}
	for o, list := range lists {
		board.Set(o, list, now)
		said[o] = true
	}
}

func eventOutcome(err error) string {
	if err == nil {
		return "done"
	}
	return outcome(err)
}
