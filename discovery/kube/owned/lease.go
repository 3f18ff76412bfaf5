package owned

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election is which of several processes leads, by a Lease.
type Election struct {
	client   *Client
	name     string
	self     string
	duration time.Duration
	leader   atomic.Pointer[string]
	leading  atomic.Bool
}

// Election returns one by the Lease of this name in the namespace of the client. self
// names this process among the others; duration is how long a leader that is silent
// counts as one.
func (c *Client) Election(name, self string, duration time.Duration) *Election {
	return &Election{client: c, name: name, self: self, duration: duration}
}

// Leader is who leads, as far as is known here, and whether that is this process.
func (e *Election) Leader() (name string, self bool) {
	if p := e.leader.Load(); p != nil {
		name = *p
	}
	return name, e.leading.Load()
}

// Run calls lead whenever this process leads, with a context that ends when it does not any
// more, until ctx ends. The Lease is given back only when lead has returned.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context)) error {
	for ctx.Err() == nil {
		if err := e.term(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

// term is one candidacy, until this process has led and leads no more.
func (e *Election) term(ctx context.Context, lead func(ctx context.Context)) error {
	election, stop := context.WithCancel(quiet(context.WithoutCancel(ctx)))
	defer stop()
	var working sync.WaitGroup
	defer context.AfterFunc(ctx, func() {
		working.Wait() // lead has the end of ctx as well
		stop()
	})()
	started := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: e.client.namespace, Name: e.name}, Client: e.client.core.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.self}},
		LeaseDuration: e.duration, RenewDeadline: e.duration * 2 / 3, RetryPeriod: e.duration / 8, ReleaseOnCancel: true, Name: e.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { started <- leading },
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				e.leader.Store(&identity)
				e.client.log.Info().Str("leader", identity).Bool("self", identity == e.self).Msg("a controller leads")
			},
		},
	})
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	working.Add(1)
	go func() {
		defer working.Done()
		var leading context.Context
		select {
		case leading = <-started:
		case <-ctx.Done():
			return
		case <-election.Done():
			return
		}
		both, end := context.WithCancel(leading)
		defer end()
		defer context.AfterFunc(ctx, end)()
		e.leading.Store(true)
		lead(both)
		e.leading.Store(false)
	}()
	elector.Run(election)
	stop()
	working.Wait()
	if ctx.Err() == nil {
		e.client.log.Warn().Msg("this controller leads no more: its Lease could not be renewed")
	}
	return nil
}
