package hbone

import (
	"context"
	"sync"
	"time"
)

// Group holds the server sessions of one listener, so that they can be drained
// together. The zero value is ready to use. Safe for concurrent use.
type Group struct {
	mu       sync.Mutex
	sessions map[*Session]bool // true while Sever ends it
	draining context.Context   // of Drain; nil before
	left     chan struct{}     // of a Drain that waits; closed when no session is left
}

// Serve runs s.Serve(ctx) with s in the group. A session that starts while the group
// drains is served and drained.
func (g *Group) Serve(ctx context.Context, s *Session) error {
	g.mu.Lock()
	if g.sessions == nil {
		g.sessions = map[*Session]bool{}
	}
	g.sessions[s] = false
	late := g.draining
	g.mu.Unlock()
	if late != nil {
		var drain sync.WaitGroup
		drain.Go(func() { drainWhenReady(late, s) })
		defer drain.Wait()
	}
	defer func() {
		g.mu.Lock()
		delete(g.sessions, s)
		g.tellLocked()
		g.mu.Unlock()
	}()
	return s.Serve(ctx)
}

// drainWhenReady drains s when both sides' SETTINGS are through: a GOAWAY in front
// of them breaks the protocol, and the client would lose what it came for.
func drainWhenReady(ctx context.Context, s *Session) {
	select {
	case <-s.life.settingsReceived:
		s.Drain(ctx)
	case <-s.life.done:
	case <-ctx.Done():
	}
}

// tellLocked ends a Drain that waits for the last session.
func (g *Group) tellLocked() {
	if g.left != nil && len(g.sessions) == 0 {
		close(g.left)
		g.left = nil
	}
}

// Drain drains every session and returns when all have ended and their handlers
// have returned, or ctx has ended: a handler may still have to deliver what a
// client that has left sent. It is called once, after the listener has been closed.
func (g *Group) Drain(ctx context.Context) {
	var drains sync.WaitGroup
	left := make(chan struct{})
	g.mu.Lock()
	g.draining = ctx
	for s := range g.sessions {
		drains.Go(func() { drainWhenReady(ctx, s) })
	}
	g.mu.Unlock()
	drains.Wait()
	g.mu.Lock()
	g.left = left
	g.tellLocked()
	g.mu.Unlock()
	select {
	case <-left:
	case <-ctx.Done():
	}
}

// GoAway sends GOAWAY on all open sessions. Each closes with its last stream. Later
// sessions are served as before. GoAway returns when these sessions are closed, or with
// the context.
func (g *Group) GoAway(ctx context.Context) {
	var drains sync.WaitGroup
	g.mu.Lock()
	for s := range g.sessions {
		drains.Go(func() { drainWhenReady(ctx, s) })
	}
	g.mu.Unlock()
	drains.Wait()
}

// Sever closes the sessions for which match holds. Each is drained, and closed after d with cause
// if match still holds then. A session that is being severed is left alone, so Sever may be
// called repeatedly. It does not wait, and returns the number of new ones. match may be
// called by several goroutines.
func (g *Group) Sever(match func(*Session) bool, d time.Duration, cause error) (n int) {
	for _, s := range g.whole() {
		if !match(s) || !g.mark(s, true) {
			continue
		}
		n++
		go func() { // ends with s, or after d
			ctx, cancel := context.WithTimeout(context.Background(), d)
			defer cancel()
			drainWhenReady(ctx, s)
			if ctx.Err() != nil && match(s) {
				s.Close(cause)
			}
			g.mark(s, false)
		}()
	}
	return n
}

// whole lists the sessions that are not being severed.
func (g *Group) whole() (out []*Session) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s, severed := range g.sessions {
		if !severed {
			out = append(out, s)
		}
	}
	return out
}

// mark notes whether s is being severed. It reports whether that is new; not so if s has left.
func (g *Group) mark(s *Session, severed bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was, in := g.sessions[s]
	if in {
		g.sessions[s] = severed
	}
	return in && was != severed
}

// Len returns how many sessions are served now.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sessions)
}

// Held is the sum of what the sessions hold, in bytes; see Session.Held.
func (g *Group) Held() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.sessions {
		n += s.Held()
	}
	return n
}
