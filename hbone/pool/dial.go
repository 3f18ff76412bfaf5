package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// dialsAtOnce is how many dials of one key may be in flight. A burst of several hundred calls needs
// a few sessions, and their handshakes cost the peer.
const dialsAtOnce = 4

// dialing is a dial in flight.
type dialing struct{ cancel context.CancelCauseFunc }

// dialMore starts the dials that waiting calls need. After a failed dial it starts none until all in
// flight are done.
func (p *Pool) dialMore(e *entry, now time.Time) {
	if e.failed != nil || len(e.waiters) == 0 {
		return
	}
	if e.isHalted(now) {
		if len(e.dials) == 0 {
			p.stats.Failed.Halted += uint64(len(e.waiters))
			e.fail(ErrHalted)
		}
		return
	}
	for want := e.wantedDials(p.cfg.MaxStreams); len(e.dials) < want; {
		p.dial(e, *e.waiters[0].call)
	}
}

// wantedDials returns how many dials should be in flight for the waiting calls.
func (e *entry) wantedDials(maxStreams int) int {
	need, spare := 0, 0
	for _, w := range e.waiters {
		if w.spare {
			spare = 1
		} else {
			need++
		}
	}
	if need+spare > 0 && e.hasSilent() {
		return 1
	}
	per := maxStreams
	if e.limit > 0 {
		per = min(per, e.limit)
	}
	return min(max((need+per-1)/per, spare), dialsAtOnce)
}

// dial starts a dial for c and all other waiting calls.
func (p *Pool) dial(e *entry, c call) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.ctx))
	d := &dialing{cancel}
	e.dials = append(e.dials, d)
	p.stats.Dials++
	if e.hasSilent() {
		p.stats.Hedges++
	}
	go func() {
		defer cancel(nil)
		ctx, stop := context.WithTimeoutCause(ctx, p.cfg.DialTimeout, fmt.Errorf("dial took more than %v", p.cfg.DialTimeout))
		defer stop()
		s, err := c.dial(ctx)
		p.dialled(e, d, s, err)
	}()
}

// dialled records the result of d.
func (p *Pool) dialled(e *entry, d *dialing, s *hbone.Session, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.dials = slices.DeleteFunc(e.dials, func(x *dialing) bool { return x == d })
	if err == nil {
		if err = unusable(s); err != nil {
			go s.CloseWhenIdle()
		}
	}
	if err != nil {
		p.dialFailed(e, err)
		return
	}
	p.stats.Dialled++
	p.enter(e, s)
}

// unusable returns why a newly dialed session can open no stream, nil if it can.
func unusable(s *hbone.Session) error {
	a := s.Availability(time.Now())
	switch {
	case a.Retired:
		if err := s.Err(); err != nil {
			return err
		}
		return errors.New("peer closed the session immediately")
	case a.SettingsReceived && a.Limit == 0:
		return errNoStreams
	}
	return nil
}

// dialFailed fails waiting calls if no dial is left that may succeed. A call that can fall back on an
// existing session uses it.
func (p *Pool) dialFailed(e *entry, err error) {
	p.stats.DialErrors++
	e.failed = err
	for _, w := range e.waiters {
		if w.spare {
			w.spare, e.alone = false, time.Now()
		}
	}
	p.serve(e)
	if len(e.dials) == 0 {
		e.failed = nil
		p.stats.Failed.Dial += uint64(len(e.waiters))
		e.fail(err)
		p.settle(e)
	}
}

// silent is called when the peer of s, a session of e, has become silent. If calls wait for its
// answer, silent starts a dial to race it. Later calls find the session silent and dial themselves.
func (p *Pool) silent(e *entry, s *hbone.Session) {
	if p.cfg.Silent != nil {
		p.cfg.Silent(e.key, s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	waits := func(sh *shared) bool { return sh.opening > 0 && sh.s.Silent() }
	if len(e.dials) == 0 && !p.closed && !e.detached && slices.ContainsFunc(e.sessions, waits) {
		p.dial(e, e.last)
	}
}

// giveUpSilent takes out the silent sessions after a dial to the same peer succeeded. CONNECTs that
// wait on them are repeated.
func (p *Pool) giveUpSilent(e *entry) {
	for i := 0; i < len(e.sessions); {
		sh := e.sessions[i]
		if !sh.s.Silent() {
			i++
			continue
		}
		p.stats.HedgesWon++
		p.take(e, sh)
		go func() {
			sh.s.CloseWhenIdle()
			sh.s.Abandon(hbone.ErrSilent)
		}()
	}
}
