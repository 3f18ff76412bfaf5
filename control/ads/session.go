package ads

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
)

const (
	// responseWindow is the flow-control window of responses, fixed as requestWindow is.
	responseWindow = 256 << 10
	// maxAcks bounds acknowledgements that are not sent yet; then the client stops reading.
	maxAcks = 100
	// clientPing is how often a client pings a silent server. Istiod allows 15 s.
	clientPing = 16 * time.Second
)

// session is one stream to a server.
type session struct {
	client  *Client
	address Address
	cancel  context.CancelCauseFunc
	signal  chan struct{} // something is to be sent
	acks    chan *pb.DeltaDiscoveryRequest
	quiet   *time.Timer // for stock servers

	// guarded by client.mu
	source  *pb.Source // nil: unknown yet
	stock   bool       // the server does not send Source
	synced  bool
	closed  bool
	started bool                            // the first requests were sent
	pending map[*clientType]map[string]bool // name → subscribe or unsubscribe
	token   int                             // of the last barrier
	waiting []waiting                       // subscriptions without an answer, in the order of sending
}

// waiting is a subscription and the barrier after it.
type waiting struct {
	token int
	*subscription
}

// name returns the name of the server for logs and the handler.
func (x *session) name() string {
	x.client.mu.Lock()
	defer x.client.mu.Unlock()
	return x.nameLocked()
}

func (x *session) nameLocked() string {
	if g := x.source.GetGateway(); g != "" {
		return g
	}
	return x.address.Name
}

// dial returns a connection for one stream.
func (c *Client) dial(a Address) (*grpc.ClientConn, error) {
	creds := a.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: c.cfg.DialTimeout, Backoff: backoff.Config{BaseDelay: c.cfg.DialTimeout, MaxDelay: c.cfg.DialTimeout}}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.cfg.MaxResponse)),
		grpc.WithStaticStreamWindowSize(responseWindow), grpc.WithStaticConnWindowSize(responseWindow),
		grpc.WithReadBufferSize(4 << 10),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: pingTimeout}),
	}
	if c.cfg.dial != nil {
		options = append(options, grpc.WithContextDialer(c.cfg.dial))
	}
	return grpc.NewClient("passthrough:///"+a.HostPort, options...)
}

func newSession(c *Client, a Address, cancel context.CancelCauseFunc) *session {
	return &session{client: c, address: a, cancel: cancel, signal: make(chan struct{}, 1), acks: make(chan *pb.DeltaDiscoveryRequest, maxAcks), quiet: time.NewTimer(c.cfg.Quiet), pending: map[*clientType]map[string]bool{}}
}

// session runs one stream until it closes. opened reports whether the server accepted
// it, and spread is the time over which the next attempt should be spread.
func (c *Client) session(ctx context.Context, a Address) (opened bool, spread time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := c.dial(a)
	if err != nil {
		return false, 0, err
	}
	defer conn.Close()
	if c.cfg.Token != nil {
		token, err := c.cfg.Token(ctx)
		if err != nil {
			return false, 0, fmt.Errorf("get the token of this node: %w", err)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	g, err := conn.NewStream(ctx, &service.Streams[0], "/"+serviceName+"/"+methodName)
	if err != nil {
		return false, 0, err
	}
	x := newSession(c, a, cancel)
	defer x.quiet.Stop()
	c.mu.Lock()
	c.sessions[x] = struct{}{}
	c.mu.Unlock()
	defer c.remove(x)
	var sending sync.WaitGroup
	sending.Go(func() { cancel(x.send(ctx, g)) })
	cancel(x.receive(ctx, g))
	sending.Wait()
	if md, err := g.Header(); err == nil && len(md) > 0 {
		opened = true
		if values := md.Get(spreadHeader); len(values) == 1 {
			ms, _ := strconv.ParseUint(values[0], 10, 31)
			spread = min(time.Duration(ms)*time.Millisecond, maxSpread)
		}
	}
	return opened, spread, context.Cause(ctx)
}

// remove forgets a session.
func (c *Client) remove(x *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.closed = true
	delete(c.sessions, x)
	c.elect()
}

// activate subscribes everything. The caller holds Client.mu.
func (x *session) activate() {
	for _, t := range x.client.types {
		for name := range t.names {
			x.want(t, name, true)
		}
	}
	x.wake()
}

// want subscribes or unsubscribes a name. The caller holds Client.mu.
func (x *session) want(t *clientType, name string, on bool) {
	if x.pending[t] == nil {
		x.pending[t] = map[string]bool{}
	}
	x.pending[t][name] = on
	x.wake()
}

func (x *session) wake() {
	select {
	case x.signal <- struct{}{}:
	default:
	}
}

// send sends requests until ctx is done or the stream fails. It also runs the timer for
// stock servers.
func (x *session) send(ctx context.Context, g grpc.ClientStream) error {
	if err := g.SendMsg(x.hello()); err != nil {
		return err
	}
	for {
		var requests []*pb.DeltaDiscoveryRequest
		select {
		case <-ctx.Done():
			return nil
		case ack := <-x.acks:
			requests = append(requests, ack)
		case <-x.signal:
			requests = x.due()
		case <-x.quiet.C:
			x.settle()
		}
		for _, m := range requests {
			if err := g.SendMsg(m); err != nil {
				return err
			}
		}
		x.rest()
	}
}

// rest starts the quiet timer again, if the server may be a stock one.
func (x *session) rest() {
	if x.maybeStock() {
		x.quiet.Reset(x.client.cfg.Quiet)
	}
}

// hello returns the first request. It describes the client and asks for the source.
func (x *session) hello() *pb.DeltaDiscoveryRequest {
	fields := map[string]*structpb.Value{}
	for k, v := range x.client.cfg.Metadata {
		fields[k] = structpb.NewStringValue(v)
	}
	return &pb.DeltaDiscoveryRequest{
		Node:    &pb.Node{Id: x.client.cfg.NodeID, Metadata: &structpb.Struct{Fields: fields}},
		TypeUrl: SourceType, ResourceNamesSubscribe: []string{wildcard},
	}
}

// due returns the requests that are due.
func (x *session) due() []*pb.DeltaDiscoveryRequest {
	c := x.client
	x.announce()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active != x {
		return nil
	}
	var out []*pb.DeltaDiscoveryRequest
	for _, t := range c.types {
		if !x.started || len(x.pending[t]) > 0 {
			out = append(out, x.request(t))
		}
	}
	x.token++
	if len(out) > 0 && !x.stock {
		out = append(out, &pb.DeltaDiscoveryRequest{TypeUrl: SyncType, ResourceNamesSubscribe: []string{strconv.Itoa(x.token)}})
	}
	x.started = true
	clear(x.pending)
	return out
}

// request returns the next request for a type.
func (x *session) request(t *clientType) *pb.DeltaDiscoveryRequest {
	m := &pb.DeltaDiscoveryRequest{TypeUrl: t.url}
	for _, name := range slices.Sorted(maps.Keys(x.pending[t])) {
		if !x.pending[t][name] {
			m.ResourceNamesUnsubscribe = append(m.ResourceNamesUnsubscribe, name)
		} else if s := t.names[name]; s != nil {
			m.ResourceNamesSubscribe = append(m.ResourceNamesSubscribe, name)
			x.waiting = append(x.waiting, waiting{x.token + 1, s})
		}
	}
	if x.started {
		return m
	}
	m.InitialResourceVersions, m.ResourceNamesUnsubscribe = maps.Clone(t.held), nil
	switch {
	case t.wildcard:
		m.ResourceNamesSubscribe = append(m.ResourceNamesSubscribe, wildcard)
	case len(m.ResourceNamesSubscribe) == 0: // both together mean nothing, neither means everything
		m.ResourceNamesSubscribe, m.ResourceNamesUnsubscribe = []string{wildcard}, []string{wildcard}
	}
	return m
}

// announce calls Handler.Activate, once. It waits for the end of a running Apply of
// the previous source, so the versions of the first request include its changes.
func (x *session) announce() {
	c := x.client
	c.applying.Lock()
	defer c.applying.Unlock()
	c.mu.Lock()
	begins := c.active == x && !x.started
	c.mu.Unlock()
	if !begins {
		return
	}
	c.announced = true
	c.cfg.Log.Info().Str("source", x.name()).Str("address", x.address.HostPort).Msg("discovery source active")
	c.cfg.Handler.Activate(x.name())
}

// maybeStock reports whether the server does not send barriers, or that is unknown.
func (x *session) maybeStock() bool {
	x.client.mu.Lock()
	defer x.client.mu.Unlock()
	return x.stock || x.source == nil
}

// settle is called when nothing was sent or received for [ClientConfig].Quiet. A server
// without a description counts as a stock one then, and the answers of a stock server as
// complete.
func (x *session) settle() {
	c := x.client
	c.mu.Lock()
	if x.source == nil {
		x.stock, x.source = true, &pb.Source{Synchronized: true}
		c.elect()
	}
	complete := x.stock && c.active == x && x.started
	token := x.token
	c.mu.Unlock()
	if complete {
		x.complete(token)
	}
}

// complete handles the barrier token: all answers to earlier subscriptions are applied.
func (x *session) complete(token int) {
	c := x.client
	c.applying.Lock()
	defer c.applying.Unlock()
	c.mu.Lock()
	if c.active != x {
		c.mu.Unlock()
		return
	}
	for len(x.waiting) > 0 && x.waiting[0].token <= token {
		x.waiting[0].finish()
		x.waiting = x.waiting[1:]
	}
	first := !x.synced
	x.synced = true
	c.mu.Unlock()
	if first {
		c.cfg.Handler.Synced(x.name())
	}
}

// receive handles responses until the stream closes.
func (x *session) receive(ctx context.Context, g grpc.ClientStream) error {
	for {
		m := new(pb.DeltaDiscoveryResponse)
		if err := g.RecvMsg(m); err != nil {
			return err
		}
		x.rest()
		var resources []Resource
		var problems []string
		for _, encoded := range m.GetResources() {
			r, err := decode(encoded, m.GetTypeUrl())
			if err != nil {
				problems = append(problems, err.Error())
				continue
			}
			resources = append(resources, r)
		}
		switch m.GetTypeUrl() {
		case SourceType:
			x.describe(resources)
			continue
		case SyncType:
			for _, r := range resources {
				token, _ := strconv.Atoi(r.Name)
				x.complete(token)
			}
			continue
		}
		problems = append(problems, x.apply(Update{m.GetTypeUrl(), resources, m.GetRemovedResources()})...)
		if len(problems) == 0 && !x.maybeStock() {
			continue // our own servers need rejections only
		}
		ack := &pb.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}
		if len(problems) > 0 {
			text := strings.Join(problems, "; ")
			ack.ErrorDetail = &pb.Status{Code: int32(codes.InvalidArgument), Message: text[:min(len(text), 4096)]}
			x.client.cfg.Log.Warn().Str("source", x.name()).Str("type", m.GetTypeUrl()).Str("error", clip(text)).Msg("resources rejected")
		}
		select {
		case x.acks <- ack:
		case <-ctx.Done():
		}
	}
}

// describe handles the description of the server.
func (x *session) describe(resources []Resource) {
	c := x.client
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range resources {
		s := new(pb.Source)
		if proto.Unmarshal(r.Body, s) == nil {
			x.source, x.stock = s, false
			c.elect()
		}
	}
}

// apply passes an update to the handler, and returns the rejections. u.Removed also
// has keys that name no resource.
func (x *session) apply(u Update) (problems []string) {
	c, answered := x.client, u.Removed
	for _, r := range u.Resources {
		answered = append(append(answered, r.Name), r.Aliases...)
	}
	c.applying.Lock()
	defer c.applying.Unlock()
	c.mu.Lock()
	t := c.typeOf(u.Type)
	if c.active != x || t == nil {
		c.mu.Unlock()
		return nil
	}
	u.Removed = slices.DeleteFunc(slices.Clone(u.Removed), func(name string) bool { _, held := t.held[name]; return !held })
	c.mu.Unlock()
	var rejected map[string]error
	if len(u.Resources)+len(u.Removed) > 0 {
		rejected = c.cfg.Handler.Apply(u)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range u.Resources {
		if err := rejected[r.Name]; err != nil {
			problems = append(problems, r.Name+": "+err.Error())
		} else {
			t.held[r.Name] = r.Version
		}
	}
	for _, name := range u.Removed {
		delete(t.held, name)
	}
	for _, name := range answered {
		if s := t.names[name]; s != nil && x.stock { // our own servers send a barrier
			s.finish()
		}
	}
	return problems
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
