package pool

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

func testTLS(t *testing.T) (c, s *tls.Config) {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	u, _ := url.Parse("spiffe://cluster.local/ns/a/sa/a")
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(1e6 * time.Hour), URIs: []*url.URL{u}, IsCA: true, BasicConstraintsValid: true, DNSNames: []string{"x"}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	check(t, err)
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	roots := x509.NewCertPool()
	leaf, _ := x509.ParseCertificate(der)
	roots.AddCert(leaf)
	c = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, ServerName: "x", NextProtos: []string{"h2"}}
	s = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"}}
	return c, s
}

// Connections to pod X are carried by inner sessions which one outer session to the gateway
// carries. That others halt the outer one is no reason to refuse connections to X: a new
// inner session goes on another outer session, which the gateway's pool opens.
func TestInnerSessionsOfAHaltedOuterOneAreReplaced(t *testing.T) {
	for _, n := range []int{3, 4} { // inner sessions on the outer one that is halted
		synctest.Test(t, func(t *testing.T) {
			clientTLS, serverTLS := testTLS(t)
			b := unreadBackend(t)
			plain := b.handler
			b.handler = func(ctx context.Context, in *hbone.Incoming) {
				if in.Authority != "inner:1" {
					plain(ctx, in)
					return
				}
				st, err := in.Accept(nil)
				if err != nil {
					return
				}
				if tr, err := hbone.ServerTLS(ctx, st, serverTLS); err == nil {
					hbone.NewServer(tr, hbone.DefaultConfig(), echoHandler).Serve(ctx)
				}
			}
			outer, inner := New(Config{}), New(Config{MaxStreams: 1})
			dial := func(ctx context.Context) (*hbone.Session, error) {
				st, _, err := outer.Open(ctx, Key{}, b.dial, &hbone.Request{Authority: "inner:1"})
				if err != nil {
					return nil, err
				}
				tr, err := hbone.ClientTLS(ctx, st, clientTLS)
				if err != nil {
					return nil, err
				}
				return hbone.NewClient(ctx, tr, hbone.DefaultConfig())
			}
			ask := func() (*hbone.Stream, error) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				st, _, err := inner.Open(ctx, Key{UID: "x"}, dial, poolReq)
				return st, err
			}
			var open []*hbone.Stream
			for range n {
				st, err := ask()
				check(t, err)
				open = append(open, st)
			}
			var idle []*hbone.Stream
			for range 20 { // straight through the gateway, of other pods, and not read
				st, err := unread(outer, b, "large:1")
				check(t, err)
				idle = append(idle, st)
			}
			time.Sleep(10500 * time.Millisecond)
			st, err := ask()
			if errors.Is(err, ErrHalted) {
				t.Errorf("with %d inner sessions on the outer one that others halted: %v", n, err)
			} else if err != nil {
				t.Errorf("%d: %v", n, err)
			} else {
				st.Reset(0)
				st.Close()
			}
			for _, st := range append(idle, open...) {
				st.Reset(0)
				st.Close()
			}
			inner.Close()
			outer.Close()
			b.stop()
			time.Sleep(10 * time.Minute)
		})
	}
}
