package owned

import (
	"context"
	"errors"
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
	leader   atomic.Pointer[leader]
	leading  atomic.Bool
}

// leader is who leads, and since when that is known here.
type leader struct {
	name  string
	since time.Time
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
		name = p.name
	}
	return name, e.leading.Load()
}

// Since is since when who leads is known here to lead; zero: nobody is.
func (e *Election) Since() time.Time {
	if p := e.leader.Load(); p != nil {
		return p.since
	}
	return time.Time{}
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
	renewDeadline := e.duration * 2 / 3
	lock := &lock{Interface: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: e.client.namespace, Name: e.name}, Client: e.client.core.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.self}}}
	started := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: e.duration, RenewDeadline: renewDeadline, RetryPeriod: e.duration / 8, ReleaseOnCancel: true, Name: e.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { started <- leading },
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				e.leader.Store(&leader{identity, time.Now()})
				e.client.log.Info().Str("leader", identity).Bool("self", identity == e.self).Msg("a controller leads")
			},
		},
	})
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	working.Add(1) // before anybody waits
	defer context.AfterFunc(ctx, func() {
		working.Wait() // lead has the end of ctx as well
		lock.over.Store(true)
		stop()
	})()
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
		defer lock.guard(renewDeadline, end)()
		e.leading.Store(true)
		lead(both)
		e.leading.Store(false)
		lock.over.Store(true) // whoever holds the Lease works, or gives it back
		stop()
	}()
	elector.Run(election)
	stop()
	working.Wait()
	if ctx.Err() == nil {
		e.client.log.Warn().Msg("this controller leads no more: its Lease could not be renewed")
	}
	return nil
}

// lock is a Lease that is given back by nobody but its holder, when the work is over, and
// that ends the work in time. The elector of client-go does neither: it gives back what it
// held last, as it believes, with the version that is there now, which after a time without
// an API server is the Lease of who leads then; and it asks for that version, for as long as
// it may take, before it says that it leads no more.
type lock struct {
	resourcelock.Interface
	over   atomic.Bool // the work is
	holder string      // as it was read last; of the elector alone

	mu      sync.Mutex
	renewed time.Time   // when it was asked for, the last time that we got it
	end     *time.Timer // of the work; nil: there is none
	limit   time.Duration
}

var errNotHeld = errors.New("the Lease is not given back: another one may hold it")

// guard calls end when the Lease has not been renewed for so long; stop ends that.
func (l *lock) guard(limit time.Duration, end func()) (stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit, l.end = limit, time.AfterFunc(limit-time.Since(l.renewed), end)
	return func() { l.end.Stop() }
}

func (l *lock) got(asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewed = asked; l.end != nil && l.end.Stop() { // else the work has ended
		l.end.Reset(l.limit - time.Since(asked))
	}
}

// Get implements [resourcelock.Interface].
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, text, err := l.Interface.Get(ctx)
	if l.holder = ""; err == nil {
		l.holder = record.HolderIdentity
	}
	return record, text, err
}

// Create implements [resourcelock.Interface].
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.take(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update implements [resourcelock.Interface].
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && (l.holder != l.Identity() || !l.over.Load()) {
		return errNotHeld
	}
	return l.take(record, func() error { return l.Interface.Update(ctx, record) })
}

func (l *lock) take(record resourcelock.LeaderElectionRecord, write func() error) error {
	asked := time.Now()
	err := write()
	if err == nil && record.HolderIdentity == l.Identity() {
		l.got(asked)
	}
	return err
}
