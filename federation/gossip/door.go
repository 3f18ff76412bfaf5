package gossip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// Door is where the gateways of another network are dialed without being known one by
// one, as the replicas behind a load balancer. Whoever answers proves which instance of
// that network it is (see introduction.go), receives, and passes on what its siblings say.
//
// Instances behind a door are no members of memberlist: those that are not connected
// cannot be asked whether they live, and that they do is proven by what they sign. Inside
// a network, and with gateways that discovery lists, membership is as it is.
type Door struct {
	Network   string
	Identity  spiffeid.ID // that its gateways show
	Addresses []netip.AddrPort
	// Dialled is that there are addresses, or will be once DNS has told them. Else the
	// gateways of that network have to dial here, and a start does not wait for them.
	Dialled bool
}

const (
	// lanesOfDoor is how many instances of a network we keep connections with that we have
	// dialed: one may be killed.
	lanesOfDoor = 2
	// maxBehind is how many instances of a network may be connected by its door.
	maxBehind = 64
)

// twice are the pauses after a door has led to an instance that we are connected to
// already: there may be no other, or none that this end is given.
var twice = backoff.Backoff{First: 100 * time.Millisecond, Limit: time.Minute}

var errTwice = errors.New("that instance is connected already")

// doors are those that are known now, by network. Safe for concurrent use.
type doors struct {
	mu     sync.Mutex
	of     map[string]Door
	failed map[string]error // the last attempt at a network, of those in of
}

// ended notes why the last connection through the door of a network was none, or ended.
func (d *doors) ended(network string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, there := d.of[network]; !there || err == nil || errors.Is(err, errTwice) || errors.Is(err, context.Canceled) {
		return
	}
	if d.failed == nil {
		d.failed = map[string]error{}
	}
	d.failed[network] = err
}

// set replaces them and returns the networks whose addresses have changed.
func (d *doors) set(list []Door) (moved map[string]bool) {
	of := make(map[string]Door, len(list))
	for _, x := range list {
		of[x.Network] = x
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	moved = map[string]bool{}
	for n, x := range of {
		if !slices.Equal(x.Addresses, d.of[n].Addresses) {
			moved[n] = true
		}
	}
	d.of = of
	maps.DeleteFunc(d.failed, func(n string, _ error) bool { _, there := of[n]; return !there })
	return moved
}

func (d *doors) get(network string) (Door, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok := d.of[network]
	return x, ok
}

// shows reports whether a gateway behind any door shows id.
func (d *doors) shows(id spiffeid.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range d.of {
		if x.Identity == id {
			return true
		}
	}
	return false
}

// admits reports whether gateways of network are taken that show id.
func (d *doors) admits(network string, id spiffeid.ID) bool {
	x, ok := d.get(network)
	return ok && x.Identity == id
}

// doorKey is one of the lanes through a door.
type doorKey struct {
	network string
	nth     int
}

// doorLane keeps a connection with an instance behind a door: another one than the other
// lanes have, if there is one.
type doorLane struct {
	doorKey
	transport *transport
	cancel    context.CancelFunc
	again     chan struct{}
	next      int // which address is next
}

func (l *doorLane) retry() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

func (l *doorLane) run(ctx context.Context) {
	defer l.cancel()
	failures, repeats := 0, 0
	failing := time.Now()
	for ctx.Err() == nil {
		start := time.Now()
		err := l.connect(ctx)
		l.transport.f.cfg.Log.Debug().Err(err).Str("network", l.network).Msg("federation connection through a door ended")
		l.transport.doors.ended(l.network, err)
		if time.Since(start) > l.transport.f.cfg.timing.silence {
			failures, repeats, failing = 0, 0, time.Now()
		}
		failures++
		pause := dials.Lasting(failures, time.Since(failing))
		switch {
		case errors.Is(err, errTwice):
			repeats++
			pause = twice.Next(repeats)
		case errors.As(err, new(*greetError)):
			pause = max(pause, doubts.Next(failures))
		}
		timer := time.NewTimer(backoff.Jitter(pause))
		select {
		case <-ctx.Done():
		case <-l.again:
			failures, repeats, failing = 0, 0, time.Now()
		case <-timer.C:
		}
		timer.Stop()
	}
}

// connect dials and serves the connection until it is of no use.
func (l *doorLane) connect(ctx context.Context) error {
	f := l.transport.f
	door, ok := l.transport.doors.get(l.network)
	if !ok || len(door.Addresses) == 0 {
		return &dialError{fmt.Errorf("network %s has no address at which its gateways are dialed", l.network)}
	}
	at := door.Addresses[(l.nth+l.next)%len(door.Addresses)]
	l.next++
	raw, err := f.cfg.dial.TLS(ctx, f.cfg.Identity, f.cfg.Self, door.Identity, at.String(), ALPN, f.cfg.timing.dial)
	if err != nil {
		f.cfg.Metrics.Joins.WithLabelValues("failed").Inc()
		if f.cfg.DoorFailed != nil && ctx.Err() == nil {
			f.cfg.DoorFailed(at)
		}
		return &dialError{err}
	}
	defer link.CloseAbruptly(raw)
	c := &conn{Conn: raw, transport: l.transport, kind: kindPacket, dialled: true, door: l.network}
	if err := c.greet(ctx, door.Identity, []byte{kindPacket}); err != nil {
		f.cfg.Metrics.Joins.WithLabelValues("failed").Inc()
		l.transport.refused(door.Identity, err)
		return &greetError{err}
	}
	if err = c.serve(ctx); errors.Is(err, errTwice) {
		f.cfg.Metrics.Joins.WithLabelValues("twice").Inc()
		return err
	}
	f.cfg.Metrics.Joins.WithLabelValues("ok").Inc()
	l.transport.refused(door.Identity, err)
	return err
}

// followDoors starts lanes through the doors that are known now and ends others. Nothing
// that is open ends because an address has changed: what it leads to has proved itself.
func (t *transport) followDoors() {
	if t.f.cfg.Doors == nil {
		return
	}
	moved := t.doors.set(t.f.cfg.Doors())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	for network := range moved {
		for nth := range lanesOfDoor {
			k := doorKey{network, nth}
			if l := t.doorLanes[k]; l != nil {
				l.retry()
				continue
			}
			ctx, cancel := context.WithCancel(t.ctx)
			l := &doorLane{transport: t, doorKey: k, cancel: cancel, again: make(chan struct{}, 1)}
			t.doorLanes[k] = l
			t.wg.Go(func() { l.run(ctx) })
		}
	}
	for k, l := range t.doorLanes {
		if _, ok := t.doors.get(k.network); !ok {
			l.cancel()
			delete(t.doorLanes, k)
		}
	}
}

// member reports whether the other end of c is one that discovery lists: only those take
// part in memberlist.
func (c *conn) member() bool { return slices.ContainsFunc(c.transport.f.cfg.Peers(), c.is) }

// DoorError is why no connection with a gateway of network is in use, although its door was
// dialed: the last attempt's error. Nil: one is in use, none was tried yet, or there is no door.
func (f *Federation) DoorError(network string) error {
	t := f.transport
	t.mu.Lock()
	for c := range t.conns() {
		if c.network() == network {
			t.mu.Unlock()
			return nil
		}
	}
	t.mu.Unlock()
	t.doors.mu.Lock()
	defer t.doors.mu.Unlock()
	return t.doors.failed[network]
}
