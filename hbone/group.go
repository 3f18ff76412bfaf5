package hbone

import (
	"context"
	"sync"
)

// Group holds the server sessions of one listener, so that they can be drained
// together. The zero value is ready to use. Safe for concurrent use.
type Group struct {
	mu       sync.Mutex
	sessions map[*Session]struct{}
	draining context.Context // of Drain; nil before
}

// Serve is s.Serve(ctx) with s in the group meanwhile. A session that comes
// while the group drains is served and drained at once.
func (g *Group) Serve(ctx context.Context, s *Session) error {
	g.mu.Lock()
	if g.sessions == nil {
		g.sessions = map[*Session]struct{}{}
	}
	g.sessions[s] = struct{}{}
	late := g.draining
	g.mu.Unlock()
	if late != nil {
		var drain sync.WaitGroup
		drain.Go(func() { s.Drain(late) })
		defer drain.Wait()
	}
	defer func() {
		g.mu.Lock()
		delete(g.sessions, s)
		g.mu.Unlock()
	}()
	return s.Serve(ctx)
}

// Drain drains every session and returns when all have ended, or ctx has. It is
// called once, after the listener has been closed.
func (g *Group) Drain(ctx context.Context) {
	var drains sync.WaitGroup
	g.mu.Lock()
	g.draining = ctx
	for s := range g.sessions {
		drains.Go(func() { s.Drain(ctx) })
	}
	g.mu.Unlock()
	drains.Wait()
}

// Len returns how many sessions are served now.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sessions)
}
