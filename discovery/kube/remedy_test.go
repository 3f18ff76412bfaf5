package kube

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// count is how many lines about pods hold text.
func (l *lines) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, `"list":"pods"`) && strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// An API server that was away and then refuses is another fault, with another remedy: each is
// one line, however often it is asked again.
func TestAnotherReasonSaysItsOwnRemedy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, log := prepare(t), &lines{}
		w.Source.log = zerolog.New(log)
		w.run(t)
		after(time.Second)
		w.refuse(errors.New("connection refused"))
		w.cut()
		after(5 * time.Minute)
		w.refuse(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no right")))
		after(10 * time.Minute)
		if away, forbidden := log.count("see whether the API server runs"), log.count("give the role of this process the verbs list and watch for pods"); away != 1 || forbidden != 1 {
			t.Errorf("%d lines that it is away and %d that it refuses, want one of each:\n%s", away, forbidden, log.b.String())
		}
	})
}
