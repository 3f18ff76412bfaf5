package nodeproxy

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
)

const (
	// shareOfFiles is which part of this process's descriptors the connections of one pod may take, at two each.
	shareOfFiles = 8
	minShare     = 32
	// shareTold is for how long a pod that was refused connections for its share is told of as a problem.
	shareTold = time.Minute
)

// share bounds the connections that one captured pod has, so that it does not take the descriptors of all.
type share struct {
	most    int
	open    atomic.Int64
	refused atomic.Int64 // when one was last, in nanoseconds since 1970; 0: never
}

// newShare returns that of each pod.
func newShare() *share {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return &share{most: maxAppConns}
	}
	return &share{most: shareOf(files.Cur)}
}

func shareOf(files uint64) int {
	return int(max(minShare, min(files/(2*shareOfFiles), maxAppConns)))
}

// counted is of with its connections counted.
func (s *share) counted(of serve) serve {
	return func(ctx context.Context, app *net.TCPConn) func(context.Context) {
		s.open.Add(1)
		rest := of(ctx, app)
		if rest == nil {
			s.open.Add(-1)
			return nil
		}
		return func(ctx context.Context) {
			defer s.open.Add(-1)
			rest(ctx)
		}
	}
}

// refuse refuses what is beyond the share, of which a is known, and what or refuses.
func (s *share) refuse(p *Proxy, a access, or refuse) refuse {
	reporter := "source"
	if a.direction == "inbound" {
		reporter = "destination"
	}
	opened := p.metrics.opened.WithLabelValues(reporter)
	return func(coming int) func() {
		if s.open.Load()+int64(coming) < int64(s.most) {
			return or(coming)
		}
		return func() {
			s.refused.Store(time.Now().UnixNano())
			opened.Inc()
			a := a
			a.result, a.started = string(header.ReasonOverload), time.Now()
			a.err = fmt.Errorf("this pod has %d connections open by this node proxy: %s", s.most, shareRemedy)
			p.finish(&a)
		}
	}
}

const shareRemedy = "no pod may have more of its descriptors: see whether the pod closes what it opens, or raise the limit of open files (RLIMIT_NOFILE) of the node proxy"

// reached says that the share was reached lately; "" if not.
func (s *share) reached(now time.Time) string {
	at := s.refused.Load()
	if at == 0 || now.Sub(time.Unix(0, at)) > shareTold {
		return ""
	}
	return fmt.Sprintf("had connections refused: it has had %d open by this node proxy, and %s", s.most, shareRemedy)
}
