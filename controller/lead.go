package controller

import (
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
	"github.com/isthmus-mesh/isthmus/internal/answer"
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
		c.problems, c.held, c.failure, c.ledger, c.vips = nil, nil, "", "", nil
		c.mu.Unlock()
	}()
	l := &leader{Controller: c, text: c.client.Text(ledgerName), gates: newGates(), fights: newFights()}
	var telling sync.WaitGroup
	defer telling.Wait()
	telling.Go(func() { c.tell(ctx) })
	telling.Go(func() { c.untaint(ctx) })
	pauses := backoff.Backoff{First: pace, Limit: 10 * time.Second}
	c.nudge()
	for failures := 0; ; {
		wait := again/2 + rand.N(again)
		if at, ok := l.gates.next(l.began); ok {
			wait = min(wait, max(0, time.Until(at)))
		}
		if failures > 0 {
			wait = pauses.Next(failures)
		}
		if !c.await(ctx, wait, failures == 0) {
			return
		}
		l.began = time.Now()
		err := l.plan(ctx)
		c.refused(l.gates.held())
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, owned.ErrStale): // somebody else has written the ledger: look again soon
			failures = 1
		case err != nil:
			failures++
			c.fail(fmt.Sprintf("the Kubernetes API server takes no writes, which are tried again: %v", err))
		default:
			failures = 0
			c.fail("")
		}
	}
}

func (c *Controller) refused(list []answer.HeldWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = list
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
	gates  *gates
	fights *fights
	began  time.Time // the last plan
}

// plan compares what there is with what there should be, and writes the difference.
func (l *leader) plan(ctx context.Context) error {
	l.fights.forget(time.Now())
	have, ok := l.imports.All()
	known := l.namespaces.Known()
	if !ok || !known {
		return nil // its news wakes
	}
	blocked := !l.gates.open(ledgerWrite, vip.Name{}, time.Now()) // nothing gets an address before the ledger says so
	if l.ledger == nil && !blocked {
		if err := l.read(ctx, have); owned.OfOne(err) {
			blocked = true
			l.shut(ledgerWrite, vip.Name{}, err)
		} else if err != nil {
			return err
		}
	}
	ledger := l.ledger
	if ledger == nil {
		ledger = vip.New(l.cfg.VIPs.ranges()) // of what is in use, for what needs no address
	}
	synced := l.synced()
	declared, ok := l.declared.All()
	if _, absent, _ := l.declared.Status(); !ok && !absent {
		synced = false
	}
	others := l.exports.all()
	vague := func(network string) bool {
		if network == l.cfg.Network {
			return !synced
		}
		return l.exports.vague(network)
	}
	r := imports.Plan(imports.View{Exports: l.withOwn(others, declared), Vague: vague, Unheard: !synced || l.exports.incomplete(), Lacks: l.namespaces.Lacks}, have, ledger, time.Now())
	l.mu.Lock()
	l.problems = r.Problems
	if l.ledger != nil {
		used, of := l.ledger.Used()
		l.vips = &answer.VIPs{Used: used, Free: of - used}
	}
	l.mu.Unlock()
	nudge(l.wrong)
	if !blocked {
		switch err := l.save(ctx, r.Writes); {
		case err == nil:
			l.opened(ledgerWrite, vip.Name{})
		case errors.Is(err, owned.ErrGone): // somebody has deleted it: what is known of it is written anew
			l.saved, blocked = "", true
			l.shut(ledgerWrite, vip.Name{}, err)
		case owned.OfOne(err) && !errors.Is(err, owned.ErrStale):
			l.ledger, blocked = nil, true
			l.shut(ledgerWrite, vip.Name{}, err)
		default:
			l.ledger = nil
			return err
		}
	}
	shuffle(r.Writes)
	wanted := map[cause]bool{}
	for _, w := range r.Writes {
		wanted[cause{w.Do.String(), w.Import.Namespace, w.Import.Name.Name}] = true
		if blocked && w.Do <= imports.Update {
			continue
		}
		want := w.Import
		want.Version, want.UID, want.Created = "", "", time.Time{}
		err := l.try(ctx, w.Do.String(), w.Import.Name, want, func() error { return l.imports.Do(ctx, w) })
		if err != nil {
			return fmt.Errorf("%s ServiceImport %s: %w", w.Do, w.Import.Name, err)
		}
	}
	if synced {
		if err := l.condition(ctx, declared, others, wanted); err != nil {
			return err
		}
	}
	l.gates.calmed(wanted, time.Now())
	return nil
}

// shuffle puts writes in another order each time: one that is never taken, whatever the API
// server says of it, keeps none of the others waiting for ever.
func shuffle[T any](list []T) {
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// ledgerWrite is what gates call reads and writes of the ledger.
const ledgerWrite = "the ledger of virtual addresses"

// try does a write, which makes what is wanted, unless its gate is closed. It fails only if the others
// would too.
func (l *leader) try(ctx context.Context, do string, n vip.Name, want any, write func() error) error {
	if l.fights.another(do, n, want) {
		l.gates.calm(do, n)
	}
	if !l.gates.open(do, n, time.Now()) {
		return nil
	}
	err := write()
	switch {
	case err == nil:
		l.metrics.writes.WithLabelValues(do, "done").Inc()
		l.log.Info().Str("name", n.String()).Str("write", do).Msg("written")
		if l.fights.did(do, n, want, time.Now()) {
			l.shut(do, n, errFought)
		} else {
			l.opened(do, n)
		}
		return nil
	case ctx.Err() != nil:
		return err
	}
	l.metrics.writes.WithLabelValues(do, outcome(err)).Inc()
	if !owned.OfOne(err) {
		return err
	}
	l.shut(do, n, err)
	return nil
}

// shut keeps writes of the same cause back for a while. Of a right that is missing the
// client says so.
func (l *leader) shut(do string, n vip.Name, err error) {
	c, first := l.gates.failed(do, n, err, time.Now())
	switch {
	case first && errors.Is(err, errFought):
		l.log.Warn().Stringer("write", c).Err(err).Msg("what is written does not stay, and is written again now and then")
	case first && (errors.Is(err, owned.ErrRefused) || errors.Is(err, owned.ErrDenied)):
		l.log.Warn().Stringer("write", c).Err(err).Msg("the Kubernetes API server refuses a write, which is tried again now and then; others go on")
	}
}

func (l *leader) opened(do string, n vip.Name) {
	for _, c := range l.gates.done(do, n, time.Now()) {
		l.log.Debug().Stringer("write", c).Msg("a write is taken again")
	}
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
func (l *leader) condition(ctx context.Context, declared map[vip.Name][]imports.Condition, others map[vip.Name][]imports.Export, wanted map[cause]bool) error {
	names := slices.Collect(maps.Keys(declared))
	shuffle(names)
	l.mu.Lock()
	noGateway := l.attached.gone
	l.mu.Unlock()
	for _, n := range names {
		local := l.objects.local(n)
		local.NoGateway = noGateway
		want := imports.Conditions(local, others[n])
		if !imports.Differ(want, declared[n]) {
			continue
		}
		wanted[cause{"conditions", n.Namespace, n.Name}] = true
		if err := l.try(ctx, "conditions", n, want, func() error { return l.declared.Write(ctx, n, want) }); err != nil {
			return fmt.Errorf("conditions of ServiceExport %s: %w", n, err)
		}
	}
	return nil
}

func outcome(err error) string {
	switch {
	case errors.Is(err, owned.ErrStale):
		return "stale"
	case errors.Is(err, owned.ErrGone):
		return "gone"
	case owned.OfOne(err):
		return "refused"
	}
	return "failed"
}

// read reads the ledger. If there is none or nothing in it, and some of have got addresses of one, it was
// deleted or emptied: then it is not known which were given back lately.
func (l *leader) read(ctx context.Context, have map[vip.Name]imports.Import) error {
	text, err := l.text.Read(ctx)
	if err != nil {
		return err
	}
	ledger, odd := vip.Parse(l.cfg.VIPs.ranges(), text, time.Now())
	said := ""
	if strings.TrimSpace(text) == "" {
		of := 0
		for _, i := range have {
			if i.Ours && len(i.IPs) > 0 {
				of++
			}
		}
		if of > 0 {
			ledger = vip.Lost(l.cfg.VIPs.ranges(), time.Now())
			said = fmt.Sprintf("the ledger of virtual addresses (ConfigMap %s) is gone or empty, and %d ServiceImports have addresses of it: these stay, and others get none for %v, as it is not known which were given back lately", ledgerName, of, vip.Quarantine)
			l.log.Warn().Str("configmap", ledgerName).Int("imports", of).Dur("quarantine", vip.Quarantine).Msg("the ledger of virtual addresses is gone or empty: addresses that are in use stay, and no others are given for as long")
		}
	}
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
