package gateway

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func (b *backends) usable(id mesh.EndpointID) bool {
	h := b.Hop(id, time.Now())
	return h.Usable && !h.Doubted
}

func TestAMissingCertificateOfOurOwnEjectsNobody(t *testing.T) {
	probing(t, func(l *listing, b *backends) {
		pod := podAt(1, "10.0.0.1")
		l.set(pod)
		b.ask = func(context.Context, *mesh.Workload) error {
			return &identity.OwnError{Err: errors.New("expired")}
		}
		b.doubt(pod)
		time.Sleep(time.Minute)
		if !b.usable(pod.Endpoint) {
			t.Error("the pod is out because this gateway has no certificate")
		}
	})
}

func TestAPodWithACertificateThatNobodyBelievesIsOutWhateverItAnswers(t *testing.T) {
	probing(t, func(l *listing, b *backends) {
		pod := podAt(1, "10.0.0.1")
		l.set(pod)
		var verdict error = &identity.ChainError{Err: errors.New("unknown authority")}
		asked := 0
		var mu sync.Mutex // guards verdict and asked
		b.ask = func(context.Context, *mesh.Workload) error {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return verdict
		}
		b.verify(pod, time.Now())
		time.Sleep(10 * time.Second)
		if b.usable(pod.Endpoint) {
			t.Fatal("a pod of another CA is healthy")
		}
		for range 5 { // clients reach it all the same, and it answers them
			b.release(b.leaseOf(pod), health.Success, "", time.Now())
		}
		if b.usable(pod.Endpoint) {
			t.Error("that it answers made it healthy")
		}
		mu.Lock()
		verdict = nil
		mu.Unlock()
		time.Sleep(10 * time.Second)
		if !b.usable(pod.Endpoint) {
			t.Error("it has a good certificate and stays out")
		}
		mu.Lock()
		before := asked
		mu.Unlock()
		for range 100 { // clients cannot make us ask for ever
			b.verify(pod, time.Now())
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if asked > before+1 {
			t.Errorf("asked %d times within a second", asked-before)
		}
	})
}
