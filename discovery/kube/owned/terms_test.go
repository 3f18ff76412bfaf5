package owned

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// lease is an API server that has one Lease, and checks versions.
type lease struct {
	mu      sync.Mutex
	is      *coordinationv1.Lease
	version int
}

func (l *lease) do(a clienttesting.Action) (runtime.Object, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	resource := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	put := func(o runtime.Object) (runtime.Object, error) {
		l.version++
		l.is = o.(*coordinationv1.Lease).DeepCopy()
		l.is.ResourceVersion = strconv.Itoa(l.version)
		return l.is.DeepCopy(), nil
	}
	switch a := a.(type) {
	case clienttesting.UpdateAction:
		switch o := a.GetObject().(*coordinationv1.Lease); {
		case a.GetVerb() == "create" && l.is != nil:
			return nil, apierrors.NewAlreadyExists(resource, "lease")
		case a.GetVerb() == "update" && l.is == nil:
			return nil, apierrors.NewNotFound(resource, "lease")
		case a.GetVerb() == "update" && o.ResourceVersion != l.is.ResourceVersion:
			return nil, apierrors.NewConflict(resource, "lease", errors.New("it has changed"))
		default:
			return put(o)
		}
	case clienttesting.GetAction:
		if l.is == nil {
			return nil, apierrors.NewNotFound(resource, "lease")
		}
		return l.is.DeepCopy(), nil
	}
	return nil, errors.New("what is this?")
}

// Random schedules of three candidates, each with a way of its own to the API server, on which
// requests and answers take their time or are lost, and of a Lease that somebody deletes: no two work
// at once, and when all is well again one does.
func TestNoTwoCandidatesWorkAtOnce(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			server := &lease{}
			began := time.Now()
			var mu sync.Mutex // of what follows
			var story []string
			tell := func(format string, a ...any) {
				story = append(story, fmt.Sprintf("%v: ", time.Since(began))+fmt.Sprintf(format, a...))
			}
			bad := map[int]string{}
			working := map[int]bool{}
			deleted := time.Time{}
			type process struct {
				stop context.CancelFunc
				done chan struct{}
			}
			start := func(i int) process {
				api := &fake.Clientset{}
				api.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
					mu.Lock()
					how, before, after := bad[i], time.Duration(rng.IntN(8000))*time.Millisecond, time.Duration(rng.IntN(8000))*time.Millisecond
					lost := rng.IntN(2) == 0
					mu.Unlock()
					switch how {
					case "down":
						return true, nil, errors.New("connection refused")
					case "slow":
						time.Sleep(before)
						o, err := server.do(a)
						time.Sleep(after)
						if lost {
							return true, nil, errors.New("the answer is lost")
						}
						return true, o, err
					}
					o, err := server.do(a)
					return true, o, err
				})
				c := &Client{core: api, namespace: "x", log: zerolog.Nop(), fails: map[string]string{}, warned: map[string]time.Time{}}
				ctx, cancel := context.WithCancel(t.Context())
				p := process{cancel, make(chan struct{})}
				go func() {
					defer close(p.done)
					c.Election("lease", fmt.Sprint("candidate-", i), 15*time.Second).Run(ctx, func(ctx context.Context) {
						mu.Lock()
						tell("%d works", i)
						for j := range working {
							if working[j] && time.Since(deleted) > time.Minute {
								t.Errorf("seed %d: %d begins while %d works\n%s", seed, i, j, strings.Join(story, "\n"))
							}
						}
						working[i] = true
						mu.Unlock()
						<-ctx.Done()
						mu.Lock()
						tell("%d works no more", i)
						working[i] = false
						mu.Unlock()
					})
				}()
				return p
			}
			processes := []process{start(0), start(1), start(2)}
			for range 60 {
				mu.Lock()
				pause := time.Duration(rng.IntN(20_000)) * time.Millisecond
				mu.Unlock()
				time.Sleep(pause)
				mu.Lock()
				i := rng.IntN(3)
				op := rng.IntN(10)
				switch {
				case op < 3:
					bad[i] = "down"
				case op < 6:
					bad[i] = "slow"
				case op < 8:
					delete(bad, i)
				case op == 8 && seed%4 == 0:
					server.mu.Lock()
					server.is, deleted = nil, time.Now()
					server.mu.Unlock()
				}
				tell("%d is %q, %d", i, bad[i], op)
				mu.Unlock()
				if op == 9 {
					processes[i].stop()
					stopped := time.Now()
					<-processes[i].done
					if took := time.Since(stopped); took > time.Minute {
						t.Errorf("seed %d: a candidate that is stopped ends after %v\n%s", seed, took, strings.Join(story, "\n"))
					}
					processes[i] = start(i)
				}
			}
			mu.Lock()
			clear(bad)
			mu.Unlock()
			time.Sleep(2 * time.Minute)
			mu.Lock()
			n := 0
			for _, is := range working {
				if is {
					n++
				}
			}
			if n != 1 {
				t.Errorf("seed %d: all is well, and %d work\n%s", seed, n, strings.Join(story, "\n"))
			}
			mu.Unlock()
			for _, p := range processes {
				p.stop()
				<-p.done
			}
		})
	}
}
