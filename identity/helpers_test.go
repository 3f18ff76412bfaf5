package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

var (
	meshTD   = spiffeid.RequireTrustDomainFromString("cluster.local")
	otherTD  = spiffeid.RequireTrustDomainFromString("other.example")
	cartID   = mustID(meshTD, "shop", "cart")
	stockID  = mustID(meshTD, "shop", "stock")
	strayID  = mustID(meshTD, "shop", "stray")
	otherID  = mustID(otherTD, "shop", "cart")
	quietLog = zerolog.Nop()
)

func mustID(td spiffeid.TrustDomain, ns, sa string) spiffeid.ID {
	id, err := WorkloadID(td, ns, sa)
	if err != nil {
		panic(err)
	}
	return id
}

// memoryCA is a root that touches no file.
func memoryCA(t testing.TB, td spiffeid.TrustDomain) *CA {
	t.Helper()
	ca, err := newCA(td, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issueSVID(t testing.TB, ca *CA, id spiffeid.ID, ttl time.Duration) *SVID {
	t.Helper()
	s, err := ca.Issue(id, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// startManager runs m until the test ends and fails it if Run does not return.
func startManager(t testing.TB, m *Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// fakeSource answers from answer and counts.
type fakeSource struct {
	mu     sync.Mutex
	calls  map[spiffeid.ID]int
	times  []time.Time
	answer func(ctx context.Context, id spiffeid.ID) (*SVID, error)
}

func (f *fakeSource) Fetch(ctx context.Context, id spiffeid.ID) (*SVID, error) {
	f.mu.Lock()
	if f.calls == nil {
		f.calls = map[spiffeid.ID]int{}
	}
	f.calls[id]++
	f.times = append(f.times, time.Now())
	answer := f.answer
	f.mu.Unlock()
	return answer(ctx, id)
}

func (f *fakeSource) set(answer func(context.Context, spiffeid.ID) (*SVID, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fakeSource) count(id spiffeid.ID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[id]
}

func (f *fakeSource) instants() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.times...)
}

// shake runs one mutual handshake over an in-memory connection and one byte
// each way, so that the client also sees what the server thinks of it.
func shake(client, server *tls.Config) (cs tls.ConnectionState, clientErr, serverErr error) {
	a, b := net.Pipe()
	c, s := tls.Client(a, client), tls.Server(b, server)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("!"))
		}
		// The alert must be read before the pipe goes away; the client closes.
		done <- err
	}()
	clientErr = c.Handshake()
	if clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1))
	}
	cs = c.ConnectionState()
	a.Close()
	serverErr = <-done
	b.Close()
	return cs, clientErr, serverErr
}

func wantAs[T error](t *testing.T, err error) T {
	t.Helper()
	var e T
	if !errors.As(err, &e) {
		t.Fatalf("error is %T %v, want %T", err, err, e)
	}
	return e
}
