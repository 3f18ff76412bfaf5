package pool

import (
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Adopt takes s, which was dialled for somebody else, as a session of key if there is none:
// those who wait for one have it. If it is not wanted, the caller still owns s.
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

// enter makes s a session of e. The caller holds mu.
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
