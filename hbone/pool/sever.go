package pool

import (
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Sever closes the sessions for which match holds, also those taken out of use earlier.
// They take no new stream. After d each is closed with cause if match still holds. A session
// that is being severed is left alone, so Sever may be called repeatedly. It does not wait, and
// returns the number of new ones. match may be called by several goroutines.
func (p *Pool) Sever(match func(Key, *hbone.Session) bool, d time.Duration, cause error) (n int) {
	for _, sh := range p.all() {
		if match(sh.e.key, sh.s) && p.takeSevered(sh) {
			n++
			go p.sever(sh, match, d, cause)
		}
	}
	return n
}

// sever closes sh after d. It ends with the session at the latest.
func (p *Pool) sever(sh *shared, match func(Key, *hbone.Session) bool, d time.Duration, cause error) {
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-sh.s.Done():
		return
	case <-over.C:
	}
	if match(sh.e.key, sh.s) {
		sh.s.Close(cause)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sh.severed = false
}

// all lists the sessions, also those that were taken out of use and have not ended yet.
func (p *Pool) all() []*shared {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := slices.Collect(maps.Keys(p.leaving))
	for _, e := range p.keys {
		out = append(out, e.sessions...)
	}
	return out
}

// takeSevered takes sh out for Sever, and reports whether no other call has.
func (p *Pool) takeSevered(sh *shared) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sh.severed {
		return false
	}
	sh.severed = true
	p.take(sh.e, sh)
	p.serve(sh.e)
	return true
}
