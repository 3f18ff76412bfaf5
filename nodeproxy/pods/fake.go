package pods

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// FakePod is one of the pods of a fake Set.
type FakePod struct {
	Addresses []netip.Addr // beside ranges, those that its rules lead here; sorted
	Names     bool         // its queries for names are answered
	Lacks     string       // why it is not captured; empty: it is
}

// Fake returns a Set that says of pods, by UID, what it would if it had entered them, or could not, and is in no
// namespace: for tests of its parent. It is not to be run.
func Fake(o Options, p Parent, pods map[string]FakePod) *Set {
	c := &Set{p: p, cfg: o, held: map[string]*Pod{}, failing: map[string]*lack{}}
	for uid, f := range pods {
		if f.Lacks != "" {
			c.failing[uid] = &lack{err: errors.New(f.Lacks)}
			continue
		}
		c.held[uid] = &Pod{uid: uid, rules: capture.Rules{Addresses: f.Addresses}, server: idle{}}
		if f.Names {
			c.held[uid].names = &nameSockets{}
		}
	}
	return c
}

// idle serves nobody.
type idle struct{}

func (idle) Start()                      {}
func (idle) Drain(context.Context)       {}
func (idle) Problems(time.Time) []string { return nil }
