package ads

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
)

// countingConn counts the bytes that it reads.
type countingConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// raw is a stream without a client of ours.
type raw struct {
	t      *testing.T
	stream grpc.ClientStream
	conn   *grpc.ClientConn
	read   atomic.Int64 // bytes
	nodeID string
}

func openRaw(t *testing.T, g *gateway, node string, options ...grpc.DialOption) *raw {
	r := &raw{t: t, nodeID: node}
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := g.dial(ctx)
		return countingConn{c, &r.read}, err
	}), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	var err error
	if r.conn, err = grpc.NewClient("passthrough:///"+g.name, options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.conn.Close() })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret")
	if r.stream, err = r.conn.NewStream(ctx, &service.Streams[0], "/"+serviceName+"/"+methodName); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *raw) send(m *pb.DeltaDiscoveryRequest) {
	r.t.Helper()
	m.Node = &pb.Node{Id: r.nodeID, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NODE_NAME": structpb.NewStringValue(r.nodeID)}}}
	if err := r.stream.SendMsg(m); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) subscribe(typeURL string, names ...string) {
	r.t.Helper()
	r.send(&pb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
}

func (r *raw) unsubscribe(typeURL string, names ...string) {
	r.t.Helper()
	r.send(&pb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesUnsubscribe: names})
}

// recv returns the next response as "type: +name +name -removed".
func (r *raw) recv() string {
	r.t.Helper()
	m := new(pb.DeltaDiscoveryResponse)
	if err := r.stream.RecvMsg(m); err != nil {
		r.t.Fatal(err)
	}
	return describe(r.t, m)
}

func describe(t *testing.T, m *pb.DeltaDiscoveryResponse) string {
	t.Helper()
	var parts []string
	for _, encoded := range m.Resources {
		x, err := decode(encoded, m.TypeUrl)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, "+"+x.Name)
	}
	for _, name := range m.RemovedResources {
		parts = append(parts, "-"+name)
	}
	slices.Sort(parts)
	return strings.TrimSpace(m.TypeUrl[strings.LastIndexByte(m.TypeUrl, '.')+1:] + " " + strings.Join(parts, " "))
}

// end returns the status with which the stream ended, after reading what was sent.
func (r *raw) end() error {
	for {
		if err := r.stream.RecvMsg(new(pb.DeltaDiscoveryResponse)); err != nil {
			return err
		}
	}
}

// inBubble runs f in virtual time with a started gateway.
func inBubble(t *testing.T, f func(t *testing.T, g *gateway), change ...func(*ServerConfig)) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway("g1", change...)
		g.start()
		t.Cleanup(g.close)
		f(t, g)
	})
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("received %q; want %q", got, want)
	}
}

func TestServerAnswersSubscriptions(t *testing.T) {
	inBubble(t, func(t *testing.T, g *gateway) {
		apply(t, g, Update{Type: typeA, Resources: []Resource{
			{Name: "ns/host", Aliases: []string{"net/240.0.0.1"}},
			{Name: "pod1", Aliases: []string{"net/10.0.0.1"}, Groups: []string{"ns/host"}},
			{Name: "pod2", Groups: []string{"node/n1"}},
		}})
		r := openRaw(t, g, "n1")
		r.send(&pb.DeltaDiscoveryRequest{TypeUrl: typeA, ResourceNamesSubscribe: []string{"*"}, ResourceNamesUnsubscribe: []string{"*"}})
		expect(t, r.recv(), "A +pod2") // of its node
		r.subscribe(typeA, "net/10.0.0.1")
		expect(t, r.recv(), "A +pod1 -net/10.0.0.1")
		r.subscribe(typeA, "net/10.9.9.9")
		expect(t, r.recv(), "A -net/10.9.9.9")
		r.subscribe(typeA, "ns/host")
		expect(t, r.recv(), "A +ns/host")
		r.subscribe(typeA, "pod1")
		expect(t, r.recv(), "A +pod1") // as the protocol wants it
		r.unsubscribe(typeA, "ns/host")
		expect(t, r.recv(), "A -ns/host")
		r.unsubscribe(typeA, "net/10.0.0.1", "pod1", "node/n1")
		expect(t, r.recv(), "A -pod1") // the node's own pods stay
		r.subscribe(typeB)
		expect(t, r.recv(), "B") // the first request always has a response
		r.subscribe(typeA, "*")
		expect(t, r.recv(), "A +ns/host +pod1")
		r.unsubscribe(typeA, "*")
		expect(t, r.recv(), "A -ns/host -pod1")
	})
}

func TestServerSendsOnlyDifferencesAfterReconnect(t *testing.T) {
	inBubble(t, func(t *testing.T, g *gateway) {
		apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: "same"}, {Name: "changed", Body: []byte("x")}, {Name: "new"}}})
		_, version, _ := (Resource{Name: "same"}).encode(typeA)
		held := map[string]string{"same": version, "changed": "old", "gone": "old"}
		r := openRaw(t, g, "n1")
		r.send(&pb.DeltaDiscoveryRequest{TypeUrl: typeA, InitialResourceVersions: held})
		expect(t, r.recv(), "A +changed +new -gone")

		// On demand, stock ztunnel lists what it holds and what it still waits for.
		held["net/10.9.9.9"] = ""
		r = openRaw(t, g, "n1")
		r.send(&pb.DeltaDiscoveryRequest{TypeUrl: typeA, ResourceNamesSubscribe: []string{"*"}, ResourceNamesUnsubscribe: []string{"*"}, InitialResourceVersions: held})
		expect(t, r.recv(), "A +changed -gone -net/10.9.9.9")
		apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: "same", Body: []byte("y")}, {Name: "new", Body: []byte("y")}}})
		expect(t, r.recv(), "A +same")
	})
}

func TestServerSendsNothingUnsubscribed(t *testing.T) {
	inBubble(t, func(t *testing.T, g *gateway) {
		r := openRaw(t, g, "n1")
		r.subscribe(typeA, "s1")
		expect(t, r.recv(), "A -s1")
		synctest.Wait()
		before := r.read.Load()
		for i := range 100 {
			apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: "other", Groups: []string{"s2"}, Body: fmt.Append(nil, i)}}})
			apply(t, g, Update{Type: typeB, Resources: []Resource{{Name: "s1", Body: fmt.Append(nil, i)}}})
			synctest.Wait()
		}
		if n := r.read.Load() - before; n != 0 {
			t.Errorf("%d bytes received for changes that are not subscribed", n)
		}
	})
}

func TestServerSendsTypesInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, g *gateway) {
		r := openRaw(t, g, "n1")
		r.subscribe(typeB, "*")
		expect(t, r.recv(), "B")
		r.subscribe(typeA, "*")
		expect(t, r.recv(), "A")
		for range 20 {
			apply(t, g, Update{Type: typeB, Resources: []Resource{{Name: "b"}}}, Update{Type: typeA, Resources: []Resource{{Name: "a"}}})
			expect(t, r.recv(), "A +a")
			expect(t, r.recv(), "B +b")
			apply(t, g, Update{Type: typeB, Removed: []string{"b"}}, Update{Type: typeA, Removed: []string{"a"}, Resources: []Resource{{Name: "c"}}})
			expect(t, r.recv(), "A +c -a")
			expect(t, r.recv(), "B -b")
			apply(t, g, Update{Type: typeA, Removed: []string{"c"}})
			expect(t, r.recv(), "A -c")
		}
	})
}

func TestBarrierFollowsEverythingDue(t *testing.T) {
	inBubble(t, func(t *testing.T, g *gateway) {
		var all []Resource
		for i := range 50 {
			all = append(all, Resource{Name: fmt.Sprint("r", i), Groups: []string{"group"}, Body: make([]byte, 10_000)})
		}
		apply(t, g, Update{Type: typeA, Resources: all}, Update{Type: typeB, Resources: []Resource{{Name: "last", Groups: []string{"group"}}}})
		r := openRaw(t, g, "n1")
		for range 3 {
			r.subscribe(typeB, "group")
			r.subscribe(typeA, "group")
			r.subscribe(SyncType, "token")
			seen := map[string]bool{}
			for !seen["+token"] {
				for _, part := range strings.Fields(r.recv()) {
					seen[part] = true
				}
			}
			if len(seen) != 50+1+1+1+3 { // resources, the answers to "group", the token, names of types
				t.Fatalf("%d parts before the barrier: %v", len(seen), seen)
			}
			r.unsubscribe(typeA, "group")
			r.unsubscribe(typeB, "group")
			for len(seen) > 0 {
				for _, part := range strings.Fields(r.recv()) {
					delete(seen, strings.Replace(part, "-", "+", 1))
				}
				delete(seen, "+token")
				delete(seen, "Sync")
				delete(seen, "-group")
				delete(seen, "A")
				delete(seen, "B")
			}
		}
	})
}

func TestServerRejectsUnauthenticated(t *testing.T) {
	var claims []Claim
	inBubble(t, func(t *testing.T, g *gateway) {
		apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: "secret"}}})
		r := openRaw(t, g, "n1")
		r.subscribe(typeA, "*")
		if err := r.stream.RecvMsg(new(pb.DeltaDiscoveryResponse)); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "not on the list") {
			t.Errorf("stream ends with %v", err)
		}
		r = openRaw(t, g, "n2")
		r.subscribe(typeA, "*")
		if err := r.stream.RecvMsg(new(pb.DeltaDiscoveryResponse)); status.Code(err) != codes.Unavailable {
			t.Errorf("stream ends with %v", err)
		}
		r = openRaw(t, g, "n3") // sends no request
		if err := r.end(); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("stream ends with %v", err)
		}
		if n := testutil.ToFloat64(g.server.cfg.Metrics.Rejected.WithLabelValues(reasonUnauthenticated)); n != 2 {
			t.Errorf("%v rejections counted", n)
		}
	}, func(c *ServerConfig) {
		c.Authenticate = func(_ context.Context, claim Claim) (Proof, error) {
			claims = append(claims, claim)
			if claim.Metadata["NODE_NAME"] == "n2" {
				return Proof{}, status.Error(codes.Unavailable, "reviewer is away")
			}
			return Proof{}, errors.New("not on the list")
		}
	})
	if c := claims[0]; c.Token != "secret" || c.NodeID != "n1" || c.Metadata["NODE_NAME"] != "n1" || c.From == nil {
		t.Errorf("claim %+v", c)
	}
}

func TestStreamEndsWithItsProof(t *testing.T) {
	for name, proof := range map[string]func(time.Time) Proof{
		"expired": func(now time.Time) Proof { return Proof{Expires: now.Add(time.Minute)} },
		"revoked": func(now time.Time) Proof {
			return Proof{Holds: func(at time.Time) error {
				if at.Sub(now) >= time.Minute {
					return errors.New("pod is gone")
				}
				return nil
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, g *gateway) {
				for i := range 100 {
					apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: fmt.Sprint(i), Body: make([]byte, 20_000)}}})
				}
				r := openRaw(t, g, "n1")
				r.subscribe(typeA, "*") // and does not read
				time.Sleep(59 * time.Second)
				synctest.Wait()
				if n := len(g.server.admitted()); n != 1 {
					t.Fatalf("%d streams after 59 s", n)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if n := len(g.server.admitted()); n != 0 {
					t.Errorf("%d streams after 61 s", n)
				}
				if err := r.end(); status.Code(err) != codes.Unauthenticated {
					t.Errorf("stream ends with %v", err)
				}
			}, func(c *ServerConfig) {
				now := time.Now()
				c.Authenticate = func(context.Context, Claim) (Proof, error) { return proof(now), nil }
			})
		})
	}
}

func TestServerBoundsItsClients(t *testing.T) {
	bounds := func(c *ServerConfig) {
		c.MaxSubscriptions, c.MaxRequest, c.MaxStreams, c.MaxIdentityStreams = 3, 2000, 4, 2
	}
	ended := func(t *testing.T, g *gateway, r *raw, code codes.Code, reason string) {
		t.Helper()
		if err := r.end(); status.Code(err) != code {
			t.Errorf("stream ends with %v; want %v", err, code)
		}
		if n := testutil.ToFloat64(g.server.cfg.Metrics.Rejected.WithLabelValues(reason)); n != 1 {
			t.Errorf("%v rejections counted as %s", n, reason)
		}
	}
	for name, c := range map[string]struct {
		use    func(r *raw)
		code   codes.Code
		reason string
	}{
		"oversized request": {func(r *raw) {
			r.subscribe(typeA, strings.Repeat("x", 900), strings.Repeat("y", 900), strings.Repeat("z", 900))
		}, codes.ResourceExhausted, reasonOversized},
		"oversized name":         {func(r *raw) { r.subscribe(typeA, strings.Repeat("x", maxName+1)) }, codes.InvalidArgument, reasonMalformed},
		"empty name":             {func(r *raw) { r.unsubscribe(typeA, "") }, codes.InvalidArgument, reasonMalformed},
		"too many subscriptions": {func(r *raw) { r.subscribe(typeA, "a", "b"); r.subscribe(typeA, "c") }, codes.ResourceExhausted, reasonSubscriptions},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, g *gateway) {
				r := openRaw(t, g, "n1")
				r.subscribe(typeB)
				c.use(r)
				ended(t, g, r, c.code, c.reason)
				synctest.Wait()
				if n := len(g.server.collections[1].watches); n != 0 {
					t.Errorf("%d keys of an ended stream are indexed", n)
				}
			}, bounds)
		})
	}
	t.Run("few subscriptions", func(t *testing.T) {
		inBubble(t, func(t *testing.T, g *gateway) {
			r := openRaw(t, g, "n1")
			for i := range 100 {
				r.subscribe(typeA, fmt.Sprint(i))
				r.unsubscribe(typeA, fmt.Sprint(i))
			}
			r.subscribe(SyncType, "token")
			for r.recv() != "Sync +token" {
			}
		}, bounds)
	})
	t.Run("streams of one identity", func(t *testing.T) {
		inBubble(t, func(t *testing.T, g *gateway) {
			var all []*raw
			for range 3 {
				all = append(all, openRaw(t, g, "n1"))
				all[len(all)-1].subscribe(typeB)
				synctest.Wait()
			}
			ended(t, g, all[0], codes.ResourceExhausted, reasonStreams)
			for _, r := range all[1:] {
				expect(t, r.recv(), "B")
			}
		}, bounds)
	})
	t.Run("streams", func(t *testing.T) {
		inBubble(t, func(t *testing.T, g *gateway) {
			for i := range 4 {
				openRaw(t, g, fmt.Sprint("n", i)).subscribe(typeB)
			}
			synctest.Wait()
			r := openRaw(t, g, "n5")
			r.stream.SendMsg(&pb.DeltaDiscoveryRequest{TypeUrl: typeB})
			ended(t, g, r, codes.ResourceExhausted, reasonStreams)
		}, bounds)
	})
}

func TestSlowStreamHoldsNoHistory(t *testing.T) {
	inBubble(t, func(t *testing.T, g *gateway) {
		r := openRaw(t, g, "n1")
		r.subscribe(typeA, "*")
		body := make([]byte, 1000)
		for i := range 5000 { // pods come and go while the client does not read
			apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: fmt.Sprint("pod", i), Body: body}, {Name: "busy", Body: fmt.Append(nil, i)}}})
			if i >= 10 {
				apply(t, g, Update{Type: typeA, Removed: []string{fmt.Sprint("pod", i-10)}})
			}
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		g.server.mu.Lock()
		for st := range g.server.streams {
			if w := st.watches[1]; len(w.due) > 1000 || cap(w.queue) > 4000 {
				t.Errorf("%d names are due, room for %d", len(w.due), cap(w.queue))
			}
		}
		g.server.mu.Unlock()
		held := map[string]string{}
		r.subscribe(SyncType, "token")
		for held["token"] == "" {
			m := new(pb.DeltaDiscoveryResponse)
			if err := r.stream.RecvMsg(m); err != nil {
				t.Fatal(err)
			}
			for _, encoded := range m.Resources {
				x, _ := decode(encoded, m.TypeUrl)
				held[x.Name] = string(x.Body) + "."
			}
			for _, name := range m.RemovedResources {
				delete(held, name)
			}
		}
		if len(held) != 12 || held["busy"] != "4999." {
			t.Errorf("%d resources are left, busy is %q", len(held), held["busy"])
		}
	})
}

func TestServerEndsStreamsWhenItStops(t *testing.T) {
	inBubble(t, func(t *testing.T, g *gateway) {
		r := openRaw(t, g, "n1")
		r.subscribe(typeA)
		expect(t, r.recv(), "A")
		g.stop()
		if err := r.end(); status.Code(err) != codes.Unavailable {
			t.Errorf("stream ends with %v", err)
		}
		if err := openRaw(t, g, "n1").end(); status.Code(err) != codes.Unavailable {
			t.Errorf("a new stream ends with %v", err)
		}
	})
}

func TestApplyNamesInvalidResources(t *testing.T) {
	s := newGateway("g1").server
	err := s.Apply(Update{Type: typeA, Resources: []Resource{{Name: ""}, {Name: "*"}, {Name: "bad\xff"}, {Name: "long", Groups: []string{strings.Repeat("x", maxName+1)}}, {Name: "good"}}}, Update{Type: "unknown"})
	if err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("error %v", err)
	}
	if c := s.collections[1]; len(c.resources) != 1 || c.resources["good"] == nil {
		t.Errorf("%d resources", len(c.resources))
	}
}

func apply(t *testing.T, g *gateway, updates ...Update) {
	t.Helper()
	if err := g.server.Apply(updates...); err != nil {
		t.Fatal(err)
	}
}

// FuzzRequest gives a server any requests on one stream.
func FuzzRequest(f *testing.F) {
	for _, m := range []*pb.DeltaDiscoveryRequest{
		{TypeUrl: typeA, ResourceNamesSubscribe: []string{"a", "*"}, InitialResourceVersions: map[string]string{"b": "1"}},
		{TypeUrl: typeA, ResourceNamesSubscribe: []string{"*"}, ResourceNamesUnsubscribe: []string{"*"}, InitialResourceVersions: map[string]string{"b": ""}},
		{TypeUrl: SyncType, ResourceNamesSubscribe: []string{"1"}},
		{TypeUrl: typeB, ResponseNonce: "1", ErrorDetail: &pb.Status{Message: "bad"}},
	} {
		b, _ := proto.Marshal(m)
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := newGateway("g1").server
		s.Apply(Update{Type: typeA, Resources: []Resource{{Name: "a", Groups: []string{"b"}}, {Name: "c"}}})
		st := newStream(s, nil, func(error) {})
		if err := s.enter(st); err != nil {
			t.Fatal(err)
		}
		s.admit(st, Proof{Keys: map[string][]string{typeA: {"c"}}})
		for _, b := range [][]byte{first, second} {
			m := new(pb.DeltaDiscoveryRequest)
			if proto.Unmarshal(b, m) == nil {
				st.handle(m)
			}
			for i := 0; st.next() != nil; i++ {
				if i > 10 {
					t.Fatal("more responses than resources")
				}
			}
		}
		s.leave(st)
		late := new(pb.DeltaDiscoveryRequest)
		if proto.Unmarshal(first, late) == nil {
			st.handle(late) // that was received before the stream closed
		}
		for _, c := range s.collections {
			if len(c.watches)+len(c.wildcards) > 0 {
				t.Fatalf("%d keys and %d wildcards of a closed stream are indexed", len(c.watches), len(c.wildcards))
			}
		}
	})
}

// repeating is a stream that subscribes and unsubscribes everything.
type repeating struct {
	grpc.ServerStream
	ctx   context.Context
	st    *stream
	all   bool
	spent time.Duration // without the last request, whose rest may be cut short
	last  time.Duration
}

func (r *repeating) Context() context.Context { return r.ctx }

func (r *repeating) RecvMsg(into any) error {
	r.spent, r.last = r.spent+r.last, r.st.work
	m := into.(*pb.DeltaDiscoveryRequest)
	m.TypeUrl = typeA
	if r.all = !r.all; r.all {
		m.ResourceNamesSubscribe = []string{"*"}
	} else {
		m.ResourceNamesUnsubscribe = []string{"*"}
	}
	return r.ctx.Err()
}

func TestServerPacesExpensiveRequests(t *testing.T) {
	s := newGateway("g1").server
	u := Update{Type: typeA}
	for i := range 5000 {
		u.Resources = append(u.Resources, Resource{Name: fmt.Sprint(i)})
	}
	s.Apply(u)
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	r := &repeating{ctx: ctx}
	r.st = newStream(s, r, func(error) {})
	start := time.Now()
	r.st.receive(&pb.DeltaDiscoveryRequest{TypeUrl: typeA, ResourceNamesSubscribe: []string{"x"}})
	if took := time.Since(start); r.spent > took/3 {
		t.Errorf("%v of %v spent on one stream", r.spent, took)
	}
}
