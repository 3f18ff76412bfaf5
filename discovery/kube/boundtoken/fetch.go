package boundtoken

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Run keeps the keys of the API server until ctx ends.
func (r *Reviewer) Run(ctx context.Context) error {
	for {
		pause := keysEvery
		if err := r.fetchKeys(ctx); err != nil {
			pause = keysAgain
		}
		if err := r.keepKeys(); err != nil {
			pause = min(pause, keepAgain)
		}
		r.cache.sweep(time.Now())
		t := time.NewTimer(wait.Jitter(pause, 0.5))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		case <-r.wake:
			t.Stop()
		}
	}
}

func (r *Reviewer) fetchKeys(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r.mu.Lock()
	r.asked = time.Now()
	r.mu.Unlock()
	configuration, set, err := r.api.Keys(ctx)
	var keys keySet
	if err == nil {
		keys, err = parseKeys(configuration, set, time.Now())
	}
	if err != nil {
		err = inner(err)
	}
	r.mu.Lock()
	was := r.stale
	r.stale = ""
	if err != nil {
		r.stale = err.Error()
	} else {
		r.keys = keys
	}
	if r.next != nil {
		close(r.next)
		r.next = nil
		select {
		case <-r.wake:
		default:
		}
	}
	r.mu.Unlock()
	r.unkept = r.unkept || err == nil
	if err != nil && was == "" && !errors.Is(err, context.Canceled) {
		remedy := "without them no token counts while the API server is away; see whether it runs and can be reached"
		if apierrors.IsForbidden(err) {
			remedy = fmt.Sprintf("without them no token counts while the API server is away: give the role of this process get on nonResourceURLs %s and %s", configurationPath, keysPath)
		}
		r.cfg.Log.Warn().Err(err).Str("remedy", remedy).Msg("the keys of the Kubernetes API server cannot be fetched")
	}
	return err
}

// keepKeys keeps the keys for the next start, if they were fetched since that was last done: also those of
// an API server that is away by now.
func (r *Reviewer) keepKeys() error {
	if !r.unkept || r.cfg.KeyFile == "" {
		return nil
	}
	r.mu.Lock()
	keys := r.keys
	r.mu.Unlock()
	err := writeKeyFile(r.cfg.KeyFile, keys)
	if err != nil && r.keeping == nil {
		r.cfg.Log.Warn().Err(err).Msg("the keys of the Kubernetes API server cannot be kept for the next start")
	}
	r.unkept, r.keeping = err != nil, err
	return err
}

// inner leaves out the address of the API server, which is known.
func inner(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

// latest returns the keys for a token of a key that is not among those of before: all such
// tokens share one question to the API server, at most one in keysAgain. Trusted reports
// that a key which is not among them either is none of this cluster.
func (r *Reviewer) latest(ctx context.Context, now time.Time) (keys keySet, trusted bool) {
	r.mu.Lock()
	if r.next == nil && now.Sub(r.asked) >= keysAgain {
		r.next = make(chan struct{})
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	next := r.next
	r.mu.Unlock()
	if next != nil {
		t := time.NewTimer(turnTime)
		defer t.Stop()
		select {
		case <-next:
		case <-ctx.Done():
		case <-t.C:
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now = time.Now()
	return r.keys, r.stale == "" && r.keys.fresh(now) && now.Sub(r.keys.Fetched) <= keysAgain+turnTime
}
