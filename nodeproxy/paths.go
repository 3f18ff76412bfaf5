package nodeproxy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/pathcheck"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
)

// pathSchedule is the schedule of checks of a path that drops large packets, until they pass.
var pathSchedule = reprobe.Schedule{First: 30 * time.Second, Limit: 2 * time.Minute, Least: pathPause, Timeout: 2 * pathcheck.SearchTime, Concurrent: 2}

// pathPause is the least time between two checks of the path to one gateway.
const pathPause = 30 * time.Second

// paths checks the path to a gateway when TCP connects to it and nothing else gets through. It keeps the fault of a path
// until a check passes or discovery drops the gateway. Gateways are named network/name. Safe for concurrent use.
type paths struct {
	checks *reprobe.Prober[string]
	check  func(ctx context.Context, key string) (*answer.Path, error)

	mu      sync.Mutex
	checked map[string]time.Time    // start of the last check
	silence map[string]time.Time    // when a session last fell silent
	faults  map[string]answer.Fault // found by the last check
}

func newPaths(ctx context.Context, check func(ctx context.Context, key string) (*answer.Path, error)) *paths {
	return &paths{checks: reprobe.New[string](ctx, pathSchedule), check: check, checked: map[string]time.Time{}, silence: map[string]time.Time{}, faults: map[string]answer.Fault{}}
}

// A session may fall silent because a firewall dropped its state. The next session to the gateway works then. Where large
// packets are dropped, that one falls silent too, within silentAgain. Sessions that fall silent within sameSilence are one event.
const (
	sameSilence = time.Second
	silentAgain = 5 * time.Minute
)

// silent records that a session to a gateway fell silent. It checks the path if one did so within silentAgain before.
func (p *paths) silent(key string) {
	now := time.Now()
	p.mu.Lock()
	last, before := p.silence[key]
	again := before && now.Sub(last) >= sameSilence && now.Sub(last) < silentAgain
	if !before || now.Sub(last) >= sameSilence {
		p.silence[key] = now
	}
	p.mu.Unlock()
	if again {
		p.suspect(key)
	}
}

// suspect starts a check of the path to a gateway, unless one was started in the last pathPause.
func (p *paths) suspect(key string) {
	p.mu.Lock()
	if at, ok := p.checked[key]; ok && time.Since(at) < pathPause {
		p.mu.Unlock()
		return
	}
	p.checked[key] = time.Now()
	p.mu.Unlock()
	var path *answer.Path
	p.checks.Watch(key, func(ctx context.Context) (err error) {
		p.mu.Lock()
		p.checked[key] = time.Now()
		p.mu.Unlock()
		path, err = p.check(ctx, key)
		return err
	}, func(err error) bool { return p.found(key, path, err) })
}

// found records the result of a check, and reports whether it was the last one of its series. A connection that fails for
// another reason is no evidence about packet sizes, so a known fault stays.
func (p *paths) found(key string, path *answer.Path, err error) (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && len(path.Faults()) > 0 {
		p.faults[key] = path.Faults()[0]
		return false
	}
	_, before := p.faults[key]
	if err == nil {
		delete(p.faults, key)
	}
	return err == nil || !before
}

// retain removes the gateways that keep rejects.
func (p *paths) retain(keep func(key string) bool) {
	p.checks.Retain(keep)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, times := range []map[string]time.Time{p.checked, p.silence} {
		maps.DeleteFunc(times, func(key string, _ time.Time) bool { return !keep(key) })
	}
	maps.DeleteFunc(p.faults, func(key string, _ answer.Fault) bool { return !keep(key) })
}

// fault returns the fault of the path to a gateway, and the remedy. Empty if none is known.
func (p *paths) fault(key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f, ok := p.faults[key]; ok {
		return f.Found + ": " + f.Remedy
	}
	return ""
}

// problems returns a line for each gateway with a fault, in their order.
func (p *paths) problems() (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(p.faults)) {
		network, name, _ := strings.Cut(key, "/")
		f := p.faults[key]
		list = append(list, fmt.Sprintf("path to gateway %s of network %s: %s: %s", name, network, f.Found, f.Remedy))
	}
	return list
}

// checkPath measures which packets pass to a gateway and back, from the node itself.
func (p *Proxy) checkPath(ctx context.Context, key string) (*answer.Path, error) {
	g := picker.Gateway(p.store.Current(), key)
	if g == nil || p.line == nil {
		return nil, errUndeclared
	}
	var names []string
	for _, x := range replicasOf(p.store.Current(), g) {
		names = append(names, picker.GatewayKey(x))
	}
	t := pathcheck.Target{
		Dial: func(ctx context.Context, maxSegment int) (net.Conn, error) {
			line := p.line.Line
			line.MaxSegment = cmp.Or(maxSegment, line.MaxSegment)
			return dialKernel(hopKeepAlive, line.Control)(ctx, g.Address, p.cfg.Timeouts.Dial)
		},
		TLS: func(ctx context.Context, conn net.Conn) (*hbone.TLSTransport, error) {
			cfg, _, err := p.clientTLS(ctx, p.self, []spiffeid.ID{g.Identity}, hbone.ClientProtocols(names...)...)
			if err != nil {
				conn.Close()
				return nil, err
			}
			return hbone.ClientTLS(ctx, conn, cfg)
		},
	}
	return t.FullSize(ctx)
}
