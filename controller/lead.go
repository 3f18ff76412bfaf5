package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
)

const (
	// ledgerName is the ConfigMap that says who has which virtual address.
	ledgerName = "isthmus-vips"
	// pace is the least time between two plans.
	pace = 200 * time.Millisecond
	// again is about how often everything is compared without a reason.
	again = 5 * time.Minute
)

// lead writes what is to be written, until ctx ends: this process leads no more.
func (c *Controller) lead(ctx context.Context) {
	defer func() {
		c.mu.Lock()
		c.problems, c.failure, c.ledger = nil, "", ""
		c.mu.Unlock()
	}()
	l := &leader{Controller: c, text: c.client.Text(ledgerName)}
	var telling sync.WaitGroup
	defer telling.Wait()
	telling.Go(func() { c.tell(ctx) })
	pauses := backoff.Backoff{First: pace, Limit: 30 * time.Second}
	c.nudge()
	for failures := 0; ; {
		wait := again/2 + rand.N(again)
		if failures > 0 {
			wait = pauses.Next(failures)
		}
		if !c.await(ctx, wait, failures == 0) {
			return
		}
		switch err := l.plan(ctx); {
		case ctx.Err() != nil:
			return
		case errors.Is(err, owned.ErrStale), errors.Is(err, owned.ErrGone):
			failures = 1 // somebody has been there meanwhile: look again soon
		case err != nil:
			failures++
			c.fail(fmt.Sprintf("the Kubernetes API server takes no writes, which are tried again: %v", err))
		default:
			failures = 0
			c.fail("")
		}
	}
}

func (c *Controller) fail(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = why
}

// await waits for news, with wakes, or for the time to be over; false: ctx has ended.
func (c *Controller) await(ctx context.Context, limit time.Duration, wakes bool) bool {
	wake := c.wake
	if !wakes {
		wake = nil
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-wake:
		select { // more may come
		case <-ctx.Done():
			return false
		case <-time.After(pace):
		}
	}
	return true
}

// leader is a process while it leads.
type leader struct {
	*Controller
	text   *owned.Text
	ledger *vip.Ledger // nil: to be read
	saved  string      // what the API server has of it
}

// plan compares what there is with what there should be, and writes the difference.
func (l *leader) plan(ctx context.Context) error {
	have, ok := l.imports.All()
	known := l.namespaces.Known()
	if !ok || !known {
		return nil // its news wakes
	}
	if l.ledger == nil {
		if err := l.read(ctx); err != nil {
			return err
		}
	}
	synced := l.synced()
	declared, ok := l.declared.All()
	if _, absent, _ := l.declared.Status(); !ok && !absent {
		synced = false
	}
	others := l.exports.all()
	vague := func(network string) bool { return l.exports.vague(network) || network == l.cfg.Network && !synced }
	r := imports.Plan(imports.View{Exports: l.withOwn(others, declared), Vague: vague, Unheard: !synced || len(l.exports.unheard()) > 0, Lacks: l.namespaces.Lacks}, have, l.ledger, time.Now())
	l.mu.Lock()
	l.problems = r.Problems
	l.mu.Unlock()
	nudge(l.wrong)
	if err := l.save(ctx, r.Writes); err != nil {
		l.ledger = nil
		return err
	}
	var first error
	for _, w := range r.Writes {
		if err := l.imports.Do(ctx, w); err != nil {
			if first == nil || errors.Is(first, owned.ErrStale) {
				first = fmt.Errorf("%s ServiceImport %s: %w", w.Do, w.Import.Name, err)
			}
			l.metrics.writes.WithLabelValues(w.Do.String(), outcome(err)).Inc()
			if ctx.Err() != nil || !concernsOne(err) {
				return first // of the others it would be the same
			}
			continue
		}
		l.metrics.writes.WithLabelValues(w.Do.String(), "done").Inc()
		l.log.Info().Str("import", w.Import.Name.String()).Str("write", w.Do.String()).Strs("clusters", w.Import.Clusters).Msg("ServiceImport written")
	}
	if !synced {
		return first
	}
	return cmp.Or(l.condition(ctx, declared, others), first)
}

// withOwn adds to what other networks export what ServiceExports of this cluster do: MCS
// has an import in the cluster of an export too.
func (l *leader) withOwn(others map[vip.Name][]imports.Export, declared map[vip.Name][]imports.Condition) map[vip.Name][]imports.Export {
	out := maps.Clone(others)
	for n := range declared {
		if own := l.objects.local(n); own.Exported {
			out[n] = append(slices.Clip(out[n]), own.Export)
		}
	}
	return out
}

// condition gives ServiceExports the conditions that they should have.
func (l *leader) condition(ctx context.Context, declared map[vip.Name][]imports.Condition, others map[vip.Name][]imports.Export) (first error) {
	for _, n := range slices.SortedFunc(maps.Keys(declared), vip.Name.Compare) {
		want := imports.Conditions(l.objects.local(n), others[n])
		if !imports.Differ(want, declared[n]) {
			continue
		}
		err := l.declared.Write(ctx, n, want)
		switch {
		case err == nil:
			l.metrics.writes.WithLabelValues("conditions", "done").Inc()
			continue
		case first == nil || errors.Is(first, owned.ErrStale):
			first = fmt.Errorf("conditions of ServiceExport %s: %w", n, err)
		}
		l.metrics.writes.WithLabelValues("conditions", outcome(err)).Inc()
		if ctx.Err() != nil || !concernsOne(err) {
			return first
		}
	}
	return first
}

// concernsOne reports whether a write has failed for what it is of, so that others may not.
func concernsOne(err error) bool {
	return errors.Is(err, owned.ErrStale) || errors.Is(err, owned.ErrGone) || errors.Is(err, owned.ErrRefused)
}

func outcome(err error) string {
	switch {
	case errors.Is(err, owned.ErrStale):
		return "stale"
	case errors.Is(err, owned.ErrGone):
		return "gone"
	}
	return "failed"
}

// read reads the ledger.
func (l *leader) read(ctx context.Context) error {
	text, err := l.text.Read(ctx)
	if err != nil {
		return err
	}
	ledger, odd := vip.Parse(l.cfg.VIPs.ranges(), text, time.Now())
	said := ""
	if len(odd) > 0 {
		said = fmt.Sprintf("%d lines of the ledger of virtual addresses (ConfigMap %s) could not be read and were left out, the first: %v: addresses in use stay; those that were given back lately may be held for %v again", len(odd), ledgerName, odd[0], vip.Quarantine)
		l.log.Warn().Int("lines", len(odd)).Err(odd[0]).Str("configmap", ledgerName).Dur("quarantine", vip.Quarantine).
			Msg("lines of the ledger of virtual addresses cannot be read: addresses that are in use stay, and those that were given back lately may be held for as long again")
	}
	l.Controller.mu.Lock()
	l.Controller.ledger = said
	l.Controller.mu.Unlock()
	l.ledger, l.saved = ledger, text
	return nil
}

// save writes the ledger if it has changed, and also if imports are to be made: who does
// not lead any more fails here.
func (l *leader) save(ctx context.Context, writes []imports.Write) error {
	text := l.ledger.String()
	makes := false
	for _, w := range writes {
		makes = makes || w.Do == imports.Create || w.Do == imports.Update
	}
	if text == l.saved && !makes {
		return nil
	}
	if err := l.text.Write(ctx, text); err != nil {
		return fmt.Errorf("write the ledger of virtual addresses: %w", err)
	}
	l.saved = text
	return nil
}

func compareStrings(a, b string) int { return strings.Compare(a, b) }
