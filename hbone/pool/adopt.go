package pool

import (
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Adopt adds s, which was dialed for another key, as a session of key if key has none, or a silent
// one. Pending calls of key use it. If Adopt returns false, the caller still owns s.
func (p *Pool) Adopt(key Key, s *hbone.Session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.keys[key]
	if p.closed || unusable(s) != nil || e != nil && (e.detached || len(e.sessions) > 0 && !e.hasSilent()) {
		return false
	}
	if e == nil {
		e = newEntry(key)
		p.keys[key] = e
	}
	p.stats.Adopted++
	p.enter(e, s)
	return true
}

// enter adds s to the sessions of e. The caller holds mu.
func (p *Pool) enter(e *entry, s *hbone.Session) {
	p.giveUpSilent(e)
	e.failed = nil
	p.seq++
	sh := &shared{e: e, s: s, seq: p.seq, expires: p.cfg.ExpiresAt(e.key, s)}
	e.sessions = append(e.sessions, sh)
	s.Observe(e.changed, func() { p.silent(e, s) })
	if p.sweep == nil && !p.closed {
		p.sweep = time.AfterFunc(p.sweepEvery(), p.sweepNow)
	}
	p.serve(e)
}
