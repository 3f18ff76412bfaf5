package owned

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// The API server is away for some seconds: afterwards somebody must lead, and work.
func TestHostileLeaderWithoutWork(t *testing.T) {
	const duration = 15 * time.Second
	for _, away := range []time.Duration{5 * time.Second, 7 * time.Second, 8 * time.Second, 9400 * time.Millisecond, 10 * time.Second, 11 * time.Second, 13 * time.Second, 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			api := fake.NewSimpleClientset()
			var down atomic.Bool
			api.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				if down.Load() {
					return true, nil, errors.New("connection refused")
				}
				return false, nil, nil
			})
			c := &Client{core: api, namespace: "x", log: zerolog.Nop(), fails: map[string]string{}, warned: map[string]time.Time{}}
			e := c.Election("lease", "me", duration)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			var working atomic.Bool
			go func() {
				defer close(done)
				e.Run(ctx, func(ctx context.Context) {
					working.Store(true)
					<-ctx.Done()
					working.Store(false)
				})
			}()
			// a second candidate
			other := c.Election("lease", "other", duration)
			done2 := make(chan struct{})
			var working2 atomic.Bool
			time.Sleep(time.Minute)
			go func() {
				defer close(done2)
				other.Run(ctx, func(ctx context.Context) {
					working2.Store(true)
					<-ctx.Done()
					working2.Store(false)
				})
			}()
			time.Sleep(time.Minute)
			synctest.Wait()
			if !working.Load() {
				t.Fatal("does not lead")
			}
			down.Store(true)
			time.Sleep(away)
			down.Store(false)
			time.Sleep(time.Hour)
			synctest.Wait()
			leader, _ := e.Leader()
			t.Logf("away for %v, an hour later: me works %v, other works %v; the Lease is held by %q", away, working.Load(), working2.Load(), leader)
			if !working.Load() && !working2.Load() {
				t.Errorf("away for %v: an hour later nobody works, and %q has the Lease", away, leader)
			}
			cancel()
			<-done
			<-done2
		})
	}
}

// A candidate that is stopped at any moment ends, and does not work after it has given the Lease back.
func TestHostileStoppedAtAnyMoment(t *testing.T) {
	for i := range 400 {
		api := fake.NewSimpleClientset()
		c := &Client{core: api, namespace: "x", log: zerolog.Nop(), fails: map[string]string{}, warned: map[string]time.Time{}}
		e := c.Election("lease", "me", 15*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Duration(i%100) * 10 * time.Microsecond)
			cancel()
		}()
		done := make(chan struct{})
		go func() { defer close(done); e.Run(ctx, func(ctx context.Context) { <-ctx.Done() }) }()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("%d: does not end", i)
		}
	}
}
