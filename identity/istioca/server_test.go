package istioca

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca/istiocapb"
)

var meshTD = spiffeid.RequireTrustDomainFromString("cluster.local")

const (
	cart  = "spiffe://cluster.local/ns/shop/sa/cart"
	stock = "spiffe://cluster.local/ns/shop/sa/stock"
	other = "spiffe://other.example/ns/shop/sa/cart"
)

func newServer(t testing.TB, ttl time.Duration, names ...string) *Server {
	t.Helper()
	ca, err := identity.InitCA(t.TempDir(), meshTD)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(ca, ttl, names, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// csr is a request for the ids, and the key that signed it.
func csr(t testing.TB, ids ...string) (string, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var template x509.CertificateRequest
	for _, id := range ids {
		u, err := url.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), key
}

func asking(t testing.TB, value any) *structpb.Struct {
	t.Helper()
	m, err := structpb.NewStruct(map[string]any{impersonated: value})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// dial serves s until the test ends and returns a connection that checks that
// it is name.
func dial(t *testing.T, s *Server, name string) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	roots := x509.NewCertPool()
	roots.AddCert(s.authority.Current().Certificate())
	c, err := grpc.NewClient("passthrough:///"+name,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: name})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

func create(t *testing.T, c *grpc.ClientConn, in *istiocapb.IstioCertificateRequest) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	out := new(istiocapb.IstioCertificateResponse)
	// The name is Istio's and must not change with ours.
	err := c.Invoke(ctx, "/istio.v1.auth.IstioCertificateService/CreateCertificate", in, out)
	return out.GetCertChain(), err
}

func TestChainIsLeafThenRoot(t *testing.T) {
	s := newServer(t, time.Hour, "ca.example")
	for _, name := range append([]string{"ca.example"}, Names...) {
		t.Run(name, func(t *testing.T) {
			text, key := csr(t, cart)
			chain, err := create(t, dial(t, s, name), &istiocapb.IstioCertificateRequest{Csr: text, ValidityDuration: 60})
			if err != nil {
				t.Fatal(err)
			}
			if len(chain) != 2 {
				t.Fatalf("chain of %d, want leaf and root", len(chain))
			}
			leaf, err := identity.ParseCertificates([]byte(chain[0]))
			if err != nil {
				t.Fatal(err)
			}
			root, err := identity.ParseBundle(meshTD, []byte(chain[1]))
			if err != nil {
				t.Fatal(err)
			}
			check(t, leaf, key, root)
			if left := time.Until(leaf[0].NotAfter); left > 61*time.Second {
				t.Errorf("valid for %s, asked for a minute", left)
			}
		})
	}
}

func check(t *testing.T, leaf []*x509.Certificate, key *ecdsa.PrivateKey, root *x509bundle.Bundle) {
	t.Helper()
	id := spiffeid.RequireFromString(cart)
	svid := identity.SVID{ID: id, Certificates: leaf, PrivateKey: key, Bundle: root}
	if err := svid.Check(id, time.Now()); err != nil {
		t.Error(err)
	}
}

func TestRefusalsSayWhy(t *testing.T) {
	c := dial(t, newServer(t, time.Hour), "localhost")
	good, _ := csr(t, cart)
	foreign, _ := csr(t, other)
	two, _ := csr(t, cart, stock)
	for name, x := range map[string]struct {
		in   *istiocapb.IstioCertificateRequest
		code codes.Code
		want string
	}{
		"nothing":           {&istiocapb.IstioCertificateRequest{}, codes.InvalidArgument, "no PEM block"},
		"two identities":    {&istiocapb.IstioCertificateRequest{Csr: two}, codes.InvalidArgument, "2 URI SANs"},
		"somebody else":     {&istiocapb.IstioCertificateRequest{Csr: good, Metadata: asking(t, stock)}, codes.PermissionDenied, stock},
		"no SPIFFE ID":      {&istiocapb.IstioCertificateRequest{Csr: good, Metadata: asking(t, "cart")}, codes.InvalidArgument, `"cart"`},
		"not text":          {&istiocapb.IstioCertificateRequest{Csr: good, Metadata: asking(t, 1)}, codes.InvalidArgument, impersonated},
		"other mesh":        {&istiocapb.IstioCertificateRequest{Csr: foreign}, codes.PermissionDenied, "other.example"},
		"other mesh, twice": {&istiocapb.IstioCertificateRequest{Csr: foreign, Metadata: asking(t, other)}, codes.PermissionDenied, "use the ca of that mesh"},
		"too large":         {&istiocapb.IstioCertificateRequest{Csr: strings.Repeat("x", maxMessage)}, codes.ResourceExhausted, "larger than max"},
	} {
		t.Run(name, func(t *testing.T) {
			chain, err := create(t, c, x.in)
			if status.Code(err) != x.code || !strings.Contains(err.Error(), x.want) || len(chain) > 0 {
				t.Errorf("%d certificates, %v; want %s with %q", len(chain), err, x.code, x.want)
			}
		})
	}
	if _, err := create(t, c, &istiocapb.IstioCertificateRequest{Csr: good, Metadata: asking(t, cart)}); err != nil {
		t.Errorf("the same identity twice: %v", err)
	}
}

func TestLifetimeIsWhatWasAskedForUpToTheLimit(t *testing.T) {
	s := newServer(t, time.Hour)
	for asked, want := range map[int64]time.Duration{
		0: time.Hour, -5: time.Hour, 1: time.Second, 60: time.Minute, 3600: time.Hour, 86400: time.Hour, 1<<63 - 1: time.Hour,
	} {
		if got := s.lifetime(asked); got != want {
			t.Errorf("asked for %d s: %s, want %s", asked, got, want)
		}
	}
}

func TestServerCertificateIsRenewedInTime(t *testing.T) {
	s := newServer(t, time.Hour)
	first, err := s.certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := s.certificate(nil); again != first {
		t.Error("made anew although it was fresh")
	}
	s.cert.Leaf.NotAfter = time.Now().Add(29 * time.Minute)
	if next, err := s.certificate(nil); err != nil || next == first {
		t.Errorf("not made anew with 29 of 60 minutes left (%v)", err)
	}
}

func TestBadNamesAndLifetimesAreFoundAtTheStart(t *testing.T) {
	ca := newServer(t, time.Hour).authority
	if _, err := New(ca, time.Millisecond, nil, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "too short") {
		t.Errorf("ttl of 1 ms: %v", err)
	}
	if _, err := New(ca, time.Hour, []string{"https://x"}, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "https://x") {
		t.Errorf("name with a scheme: %v", err)
	}
}

func FuzzPermit(f *testing.F) {
	s := newServer(f, time.Hour)
	good, _ := csr(f, cart)
	foreign, _ := csr(f, other)
	two, _ := csr(f, cart, stock)
	for _, text := range []string{"", good, foreign, two, good[:200]} {
		f.Add(text, "", false)
		f.Add(text, cart, true)
		f.Add(text, stock, true)
	}
	f.Fuzz(func(t *testing.T, text, who string, named bool) {
		in := &istiocapb.IstioCertificateRequest{Csr: text}
		if named {
			in.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{impersonated: structpb.NewStringValue(who)}}
		}
		r, err := permit(s.authority.Current(), in)
		switch {
		case err == nil && (!r.ID.MemberOf(meshTD) || named && who != r.ID.String()):
			t.Fatalf("permitted %s for %q", r.ID, who)
		case err != nil && status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.PermissionDenied:
			t.Fatalf("code %s: %v", status.Code(err), err)
		}
	})
}
