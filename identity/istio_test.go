package identity_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca"
)

var domain = spiffeid.RequireTrustDomainFromString("cluster.local")

func of(name string) spiffeid.ID {
	return spiffeid.RequireFromSegments(domain, "ns", "isthmus-system", "sa", name)
}

// tokenOf is what a bound token looks like to who holds it.
func tokenOf(account, id string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"sub":"system:serviceaccount:isthmus-system:%s","jti":%q}`, account, id)) + ".c2ln"
}

// gatekeeper is an Authorizer that notes who asks for what.
type gatekeeper struct {
	mu     sync.Mutex
	tokens map[string]bool // that are good
	may    map[string]bool // identities that may be had
	asked  []string        // token and identity
}

func (g *gatekeeper) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

func (g *gatekeeper) Authenticate(_ context.Context, _ netip.Addr, token string) (istioca.Caller, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.tokens[token] {
		return nil, errors.New("this token has expired")
	}
	return guest{g, token}, nil
}

type guest struct {
	g     *gatekeeper
	token string
}

func (x guest) Key() string    { return x.token }
func (x guest) String() string { return "guest" }
func (x guest) May(id spiffeid.ID) error {
	x.g.mu.Lock()
	defer x.g.mu.Unlock()
	x.g.asked = append(x.g.asked, id.Path())
	if !x.g.may[id.Path()] {
		return errors.New("no live pod of that service account is on its node")
	}
	return nil
}

// authority is a CA on a port of loopback, over TLS.
type authority struct {
	*gatekeeper
	t       *testing.T
	dir     string
	ca      *identity.CADir
	ttl     time.Duration
	address string
	stop    func()
}

func newAuthority(t *testing.T, ttl time.Duration) *authority {
	t.Helper()
	a := &authority{gatekeeper: &gatekeeper{tokens: map[string]bool{}, may: map[string]bool{}}, t: t, dir: t.TempDir(), ttl: ttl, address: "127.0.0.1:0"}
	if _, err := identity.InitCA(a.dir, domain); err != nil {
		t.Fatal(err)
	}
	var err error
	if a.ca, err = identity.OpenCADir(a.dir); err != nil {
		t.Fatal(err)
	}
	a.start()
	t.Cleanup(func() { a.stop() })
	return a
}

func (a *authority) start() {
	a.t.Helper()
	s, err := istioca.New(a.ca, a.ttl, nil, zerolog.Nop(), istioca.WithAuthorizer(a.gatekeeper))
	if err != nil {
		a.t.Fatal(err)
	}
	l, err := net.Listen("tcp", a.address)
	if err != nil {
		a.t.Fatal(err)
	}
	a.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.Serve(ctx, l) }()
	go func() { done <- a.ca.Run(ctx, zerolog.Nop()) }()
	a.stop = sync.OnceFunc(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				a.t.Error(err)
			}
		}
	})
}

// client is a process with source istio.
type client struct {
	identity.Config
	t *testing.T
	*identity.Manager
}

func (a *authority) client(token string, change ...func(*identity.Config)) *client {
	a.t.Helper()
	dir := a.t.TempDir()
	c := &client{t: a.t, Config: identity.Config{Source: "istio", Address: a.address, Root: filepath.Join(dir, "root.pem"), Token: filepath.Join(dir, "token"), TTL: a.ttl, Bundle: filepath.Join(dir, "root.pem")}}
	for _, f := range change {
		f(&c.Config)
	}
	c.write(c.Root, identity.EncodeCertificates(a.ca.Current().Roots()...))
	c.write(c.Token, []byte(token+"\n"))
	return c
}

func (c *client) write(path string, data []byte) {
	c.t.Helper()
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		c.t.Fatal(err)
	}
}

// open starts the Manager, and ends it with the test.
func (c *client) open() *client {
	c.t.Helper()
	var err error
	if c.Manager, err = c.Open(zerolog.Nop()); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	return c
}

// until polls a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestANodeProxyHasItsOwnCertificateAndThoseOfItsPods(t *testing.T) {
	a := newAuthority(t, time.Hour)
	token := tokenOf("nodeproxy", "1")
	a.tokens[token], a.may[of("nodeproxy").Path()], a.may[of("pod").Path()] = true, true, true
	c := a.client(token).open()
	for _, id := range []spiffeid.ID{of("nodeproxy"), of("pod")} {
		s, err := c.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(id, time.Now()); err != nil || len(s.Certificates) != 1 {
			t.Errorf("%s: %d certificates, %v", id, len(s.Certificates), err)
		}
	}
	if _, err := c.Get(t.Context(), of("stranger")); err == nil || !strings.Contains(err.Error(), "no live pod") {
		t.Errorf("somebody who is not on the node: %v", err)
	}
	// What is required no more is not asked for any more.
	c.Require(of("nodeproxy"))
	c.Forget(of("pod"))
	until(t, "the pod is forgotten", func() bool { return len(c.Status()) <= 2 })
	for _, s := range c.Status() {
		if s.ID == of("pod") {
			t.Error("the certificate of a pod that is gone is kept")
		}
	}
	entries, err := os.ReadDir(filepath.Dir(c.Root))
	if err != nil || len(entries) != 2 {
		t.Errorf("files beside root and token: %v, %v; want none, as keys are in memory alone", entries, err)
	}
}

func TestErrorsOfACANameTheKeyOfTheConfiguration(t *testing.T) {
	a, other := newAuthority(t, time.Hour), newAuthority(t, time.Hour)
	token := tokenOf("gateway", "1")
	a.tokens[token], a.may[of("gateway").Path()] = true, true
	get := func(c *client) error {
		_, err := c.Get(t.Context(), of("gateway"))
		return err
	}
	for name, x := range map[string]struct {
		client *client
		want   []string
	}{
		"token":       {a.client("x"), []string{"identity.token", "has expired", a.address}},
		"root":        {a.client(token, func(c *identity.Config) { c.Root = filepath.Join(t.TempDir(), "root") }), []string{"identity.root", "no such file"}},
		"server name": {a.client(token, func(c *identity.Config) { c.ServerName = "other.example" }), []string{"identity.serverName", "other.example"}},
		"address":     {a.client(token, func(c *identity.Config) { c.Address = "127.0.0.1:1" }), []string{"identity.address", "127.0.0.1:1", "refused"}},
	} {
		c := x.client
		if name == "root" {
			os.Remove(c.Root)
		}
		err := get(c.open())
		for _, want := range x.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want it to say %q", name, err, want)
			}
		}
	}
	wrong := a.client(token)
	wrong.write(wrong.Root, identity.EncodeCertificates(other.ca.Current().Certificate()))
	wrong.open()
	if err := get(wrong); err == nil || !strings.Contains(err.Error(), "identity.root") {
		t.Errorf("a CA of another root: %v", err)
	}
	other.set(func() {
		if len(other.asked) > 0 {
			t.Error("the token went to a server that has not proved its name")
		}
	})
	wrong.write(wrong.Root, identity.EncodeCertificates(a.ca.Current().Certificate()))
	until(t, "the root is read again", func() bool { return get(wrong) == nil })

	for field, c := range map[string]identity.Config{
		"identity.address": {Source: "istio", Address: "ca", Root: "r", Token: "t"},
		"identity.root":    {Source: "istio", Address: "ca:1", Token: "t"},
		"identity.token":   {Source: "istio", Address: "ca:1", Root: "r"},
		"identity.dir":     {Source: "istio", Address: "ca:1", Root: "r", Token: "t", Dir: "d"},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := (identity.Config{Dir: "d", Address: "ca:1"}).Validate(); err == nil || !strings.Contains(err.Error(), "identity.address") {
		t.Errorf("address beside source ca: %v", err)
	}
}

// A certificate is renewed at half of its life with the token of then, and while the CA is
// away what there is serves.
func TestCertificatesAreRenewedInTime(t *testing.T) {
	a := newAuthority(t, 4*time.Second)
	first, second := tokenOf("gateway", "1"), tokenOf("gateway", "2")
	a.set(func() { a.tokens[first], a.may[of("gateway").Path()] = true, true })
	c := a.client(first).open()
	c.Require(of("gateway"))
	until(t, "the first certificate is there", func() bool { return len(c.Missing()) == 0 })
	before, err := c.Get(t.Context(), of("gateway"))
	if err != nil {
		t.Fatal(err)
	}
	a.set(func() { a.tokens = map[string]bool{second: true} })
	c.write(c.Token, []byte(second)) // as the kubelet does
	until(t, "it is renewed by the new token", func() bool {
		s, err := c.Get(t.Context(), of("gateway"))
		return err == nil && s != before
	})
	if left := time.Until(before.NotAfter()); left < 0 {
		t.Errorf("renewed %v after it had expired", -left)
	}
	a.stop()
	now, err := c.Get(t.Context(), of("gateway"))
	if err != nil {
		t.Errorf("without the CA: %v", err)
	}
	until(t, "the failure shows", func() bool { return c.Status()[0].Failures > 0 })
	a.start()
	until(t, "it is renewed when the CA is back", func() bool {
		s, err := c.Get(t.Context(), of("gateway"))
		return err == nil && s != now
	})
}

// The root is replaced while two processes open connections to each other all the time:
// first both roots are believed, then the new one signs, then the old one is out. None
// fails.
func TestRotationOfTheRootUnderTraffic(t *testing.T) {
	a := newAuthority(t, 4*time.Second)
	token := tokenOf("gateway", "1")
	a.set(func() { a.tokens[token], a.may[of("gateway").Path()] = true, true })
	server, dialler := a.client(token).open(), a.client(token).open()
	publish := func() { // the ConfigMap of the roots
		for _, c := range []*client{server, dialler} {
			c.write(c.Root, identity.EncodeCertificates(a.ca.Current().Roots()...))
		}
	}
	traffic := startTraffic(t, server.Manager, dialler.Manager, of("gateway"))
	signedBy := func(serial string) func() bool {
		return func() bool {
			for _, m := range []*client{server, dialler} {
				s, err := m.Get(t.Context(), of("gateway"))
				if err != nil || s.Certificates[0].Issuer.SerialNumber != serial {
					return false
				}
			}
			return true
		}
	}
	roots := func(n int) func() bool {
		return func() bool {
			for _, m := range []*client{server, dialler} {
				s, err := m.Get(t.Context(), of("gateway"))
				if err != nil || len(s.Bundle.X509Authorities()) != n {
					return false
				}
			}
			return true
		}
	}
	old := a.ca.Current().Certificate().Subject.SerialNumber
	until(t, "traffic flows", func() bool { return traffic.done() > 20 })

	r, err := identity.BeginRotation(a.dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the CA has both roots", func() bool { return len(a.ca.Current().Roots()) == 2 })
	publish()
	until(t, "both roots are believed", roots(2))
	if !signedBy(old)() {
		t.Error("the new root signs before it is believed")
	}
	if _, err := identity.SwitchRotation(a.dir); err != nil {
		t.Fatal(err)
	}
	until(t, "the new root signs", signedBy(r.Next.Subject.SerialNumber))
	if _, err := identity.FinishRotation(a.dir); err != nil {
		t.Fatal(err)
	}
	until(t, "the CA has one root", func() bool { return len(a.ca.Current().Roots()) == 1 })
	publish()
	until(t, "the old root is out", roots(1))
	at := traffic.done()
	until(t, "traffic flows on", func() bool { return traffic.done() > at+20 })
	if failed := traffic.stop(); len(failed) > 0 {
		t.Errorf("%d of %d connections failed, the first: %v", len(failed), traffic.done(), failed[0])
	}
	t.Logf("%d connections while the root was replaced, one of them from the start to the end", traffic.done())
	if !slices.ContainsFunc(a.ca.Current().Roots(), r.Next.Equal) {
		t.Error("the new root is not the one that is left")
	}
}

// Check asks no CA, and reads the token that a running process shows to it.
func TestCheckReadsTokenForCA(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	m, err := identity.Config{Source: "istio", Address: "127.0.0.1:1", Root: path + ".root", Token: path}.Open(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err == nil || !strings.Contains(err.Error(), "identity.token: ") {
		t.Errorf("without the file: %v; want an error that names identity.token", err)
	}
	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Errorf("with the file: %v", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err == nil || !strings.Contains(err.Error(), "mode 0666") {
		t.Errorf("with mode 0666: %v", err)
	}
}
