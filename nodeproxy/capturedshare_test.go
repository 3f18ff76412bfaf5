package nodeproxy

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// One pod does not take the descriptors of all: what it opens beyond its share is refused, and said.
func TestACapturedPodHasAShareOfConnections(t *testing.T) {
	for files, want := range map[uint64]int{0: minShare, 1024: 64, 65536: 4096, 1 << 20: 65536, 1 << 62: maxAppConns} {
		if got := shareOf(files); got != want {
			t.Errorf("of %d descriptors: %d connections, want %d", files, got, want)
		}
	}
	p := newTestProxy(t, listing(t))
	s := &share{most: 2}
	other := 0
	refuse := s.refuse(p, access{source: "shop", direction: "outbound"}, func(int) func() { other++; return nil })
	var rests []func(context.Context)
	open := func() {
		rests = append(rests, s.counted(func(context.Context, *net.TCPConn) func(context.Context) { return func(context.Context) {} })(t.Context(), nil))
	}
	for range 2 {
		if refuse(0) != nil {
			t.Fatal("refused within the share")
		}
		open()
	}
	if s.reached(time.Now()) != "" {
		t.Error("reached before one was refused")
	}
	end := refuse(0)
	if end == nil || other != 2 {
		t.Fatalf("beyond the share: refused %v, asked %d times for other reasons", end != nil, other)
	}
	end()
	if got := s.reached(time.Now()); !strings.Contains(got, "it has had 2 open") || !strings.Contains(got, "RLIMIT_NOFILE") {
		t.Errorf("said %q", got)
	}
	if s.reached(time.Now().Add(2*shareTold)) != "" {
		t.Error("said for ever")
	}
	rests[0](t.Context())
	if refuse(0) != nil || refuse(1) == nil {
		t.Error("when one has ended there is room for one")
	}
	if s.counted(func(context.Context, *net.TCPConn) func(context.Context) { return nil })(t.Context(), nil) != nil || s.open.Load() != 1 {
		t.Errorf("%d are open, want 1", s.open.Load())
	}
}

// What a captured pod is refused for its shares, either way, is a problem of the pod.
func TestSharesThatWereReachedAreProblemsOfThePod(t *testing.T) {
	p := newTestProxy(t, listing(t))
	h := &captured{p: p, uid: "shop", share: &share{most: 0}, arriving: &share{most: 0}}
	for i, s := range []*share{h.share, h.arriving} {
		s.refuse(p, access{direction: "outbound"}, func(int) func() { return nil })(0)()
		if got := h.Problems(time.Now()); len(got) != i+1 || !strings.HasPrefix(got[i], "had connections refused") {
			t.Errorf("when %d shares were reached: %q", i+1, got)
		}
	}
}
