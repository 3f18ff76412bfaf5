package istioca

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca/istiocapb"
)

// tokens are an Authorizer: who has which token, and may be whom.
type tokens map[string]owner

type owner struct {
	name string
	ids  []string
}

func (o owner) Key() string    { return o.name }
func (o owner) String() string { return o.name }
func (o owner) May(id spiffeid.ID) error {
	for _, x := range o.ids {
		if x == id.String() {
			return nil
		}
	}
	return fmt.Errorf("%s may not be %s", o.name, id)
}

func (x tokens) Authenticate(_ context.Context, _ netip.Addr, token string) (Caller, error) {
	if token == "away" {
		return nil, fmt.Errorf("the API server is away: %w", ErrUnavailable)
	}
	if o, ok := x[token]; ok {
		return o, nil
	}
	return nil, errors.New("nobody's token")
}

// as sends requests with authorization headers.
type as struct {
	t *testing.T
	c *grpc.ClientConn
}

func (x as) create(in *istiocapb.IstioCertificateRequest, authorization ...string) (*istiocapb.IstioCertificateResponse, error) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), 10*time.Second)
	defer cancel()
	for _, a := range authorization {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", a)
	}
	out := new(istiocapb.IstioCertificateResponse)
	err := x.c.Invoke(ctx, "/istio.v1.auth.IstioCertificateService/CreateCertificate", in, out)
	return out, err
}

func newAuthorized(t *testing.T, log *bytes.Buffer) (*Server, *Metrics) {
	t.Helper()
	ca, err := identity.InitCA(t.TempDir(), meshTD)
	if err != nil {
		t.Fatal(err)
	}
	m := NewMetrics(prometheus.NewRegistry())
	s, err := New(ca, time.Hour, nil, zerolog.New(log), WithMetrics(m), WithAuthorizer(tokens{"node": {"node", []string{cart, stock}}, "gateway": {"gateway", []string{stock}}}))
	if err != nil {
		t.Fatal(err)
	}
	return s, m
}

func TestTheAuthorizerSaysWhoMayBeWhom(t *testing.T) {
	var log bytes.Buffer
	s, m := newAuthorized(t, &log)
	x := as{t, dial(t, s, "localhost")}
	text, _ := csr(t, cart)
	in := &istiocapb.IstioCertificateRequest{Csr: text, Metadata: asking(t, cart)}
	for name, y := range map[string]struct {
		header []string
		code   codes.Code
		want   string
	}{
		"allowed":         {[]string{"Bearer node"}, codes.OK, ""},
		"lower case":      {[]string{"bearer node"}, codes.OK, ""},
		"somebody else's": {[]string{"Bearer gateway"}, codes.PermissionDenied, "gateway may not be " + cart},
		"nobody's":        {[]string{"Bearer x"}, codes.Unauthenticated, "nobody's token"},
		"no header":       {nil, codes.Unauthenticated, "0 authorization headers"},
		"two":             {[]string{"Bearer node", "Bearer node"}, codes.Unauthenticated, "2 authorization headers"},
		"no token":        {[]string{"Bearer"}, codes.Unauthenticated, "no bearer token"},
		"basic":           {[]string{"Basic node"}, codes.Unauthenticated, "no bearer token"},
		"away":            {[]string{"Bearer away"}, codes.Unavailable, "API server is away"},
		"huge":            {[]string{"Bearer " + strings.Repeat("x", maxToken+1)}, codes.Unauthenticated, "bearer token of"},
	} {
		_, err := x.create(in, y.header...)
		if status.Code(err) != y.code || err != nil && !strings.Contains(err.Error(), y.want) {
			t.Errorf("%s: %v; want %s with %q", name, err, y.code, y.want)
		}
	}
	for result, want := range map[string]float64{"issued": 2, "denied": 1, "unauthenticated": 6, "unavailable": 1, "limited": 0} {
		if got := testutil.ToFloat64(m.requests.WithLabelValues(result)); got != want {
			t.Errorf("%v requests %s; want %v", got, result, want)
		}
	}
	for _, want := range []string{`"caller":"gateway"`, `"identity":"` + cart + `"`, "gateway may not be"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, &log)
		}
	}
}

func TestOneCallerCannotHaveAllCertificates(t *testing.T) {
	var l limiter
	now := time.Unix(1000, 0)
	for i := range burst {
		if !l.allow("a", now) {
			t.Fatalf("request %d of a burst of %d is refused", i+1, burst)
		}
	}
	if l.allow("a", now) {
		t.Error("one more than the burst is allowed")
	}
	if !l.allow("b", now) {
		t.Error("another caller pays for it")
	}
	if now = now.Add(time.Second); !l.allow("a", now) {
		t.Error("a second later nothing is allowed")
	}
	for i := range maxCallers + 100 {
		l.allow(fmt.Sprint(i), now)
	}
	if n := len(l.buckets); n > maxCallers+1 {
		t.Errorf("%d callers are remembered; want at most %d", n, maxCallers+1)
	}
	now = now.Add(refill)
	if l.allow("new", now); len(l.buckets) != 1 {
		t.Errorf("%d callers are remembered when all have been quiet; want one", len(l.buckets))
	}
}

func TestALimitedCallerIsToldSo(t *testing.T) {
	var log bytes.Buffer
	s, _ := newAuthorized(t, &log)
	x := as{t, dial(t, s, "localhost")}
	now := time.Now()
	for s.callers.allow("node", now) {
	}
	s.callers.buckets["node"].at = now.Add(time.Hour) // no refill meanwhile
	text, _ := csr(t, cart)
	if _, err := x.create(&istiocapb.IstioCertificateRequest{Csr: text}, "Bearer node"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v; want %s", err, codes.ResourceExhausted)
	}
}
