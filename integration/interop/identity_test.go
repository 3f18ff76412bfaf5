package interop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// certificate issues one of the mesh's root for any SPIFFE ID and any time, which
// no command of ours does.
func certificate(t *testing.T, spiffeID string, from, until time.Time) tls.Certificate {
	t.Helper()
	root, key := pemFile(t, "ca/ca.pem"), pemFile(t, "ca/ca-key.pem")
	ca, err := x509.ParseCertificate(root)
	check(t, err)
	caKey, err := x509.ParsePKCS8PrivateKey(key)
	check(t, err)
	uri, err := url.Parse(spiffeID)
	check(t, err)
	own, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	check(t, err)
	leaf, err := x509.CreateCertificate(crand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: from, NotAfter: until, URIs: []*url.URL{uri},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, ca, &own.PublicKey, caKey)
	check(t, err)
	return tls.Certificate{Certificate: [][]byte{leaf, root}, PrivateKey: own}
}

func pemFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(here.Dir, name))
	check(t, err)
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s is no PEM", name)
	}
	return block.Bytes
}

// papers are certificates that a peer shows; good is whether it is let in.
func papers(t *testing.T, account string) map[string]struct {
	cert tls.Certificate
	good bool
} {
	now := time.Now()
	own := id(account).String()
	return map[string]struct {
		cert tls.Certificate
		good bool
	}{
		"valid":                {certificate(t, own, now.Add(-time.Hour), now.Add(time.Hour)), true},
		"expired":              {certificate(t, own, now.Add(-2*time.Hour), now.Add(-time.Minute)), false},
		"another trust domain": {certificate(t, "spiffe://elsewhere.example"+id(account).Path(), now.Add(-time.Hour), now.Add(time.Hour)), false},
	}
}

func TestClientsWithBadCertificatesAreNotLetIn(t *testing.T) {
	need(t)
	for _, host := range []string{"server-ours", "server-stock", "gateway"} {
		for name, p := range papers(t, "demo/shop") {
			t.Run(host+", "+name, func(t *testing.T) {
				c, err := here.Dial("server-tape", addresses[host]+":15008")
				check(t, err)
				defer c.Close()
				c.SetDeadline(time.Now().Add(patience))
				conn := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{p.cert}})
				_, err = conn.Read(make([]byte, 1)) // of the server's SETTINGS
				if (err == nil) != p.good || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the server's first byte: %v, want success: %v", err, p.good)
				}
			})
		}
	}
}

func TestServersWithBadCertificatesAreNotTalkedTo(t *testing.T) {
	need(t)
	for host, service := range map[string]string{"server-tape": "near-tape", "gateway-tape": "beyond-tape"} {
		account := map[string]string{"server-tape": "demo/pay", "gateway-tape": gatewayAccount}[host]
		for name, p := range papers(t, account) {
			t.Run(host+", "+name, func(t *testing.T) {
				l, err := here.Listen(host, addresses[host]+":15008")
				check(t, err)
				defer l.Close()
				var heard atomic.Int64 // bytes behind a handshake
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go func() {
							defer c.Close()
							c.SetDeadline(time.Now().Add(patience))
							conn := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{p.cert}, NextProtos: []string{"h2"}, ClientAuth: tls.RequireAnyClientCert})
							n, _ := conn.Read(make([]byte, 1))
							heard.Add(int64(n))
						}()
					}
				}()
				for _, client := range []string{"client-ours", "client-stock"} {
					before := heard.Load()
					refused(t, cell{client, "tape", "bad", vip(service, 80)}) // it speaks no HBONE
					if got := heard.Load() - before; (got > 0) != p.good {
						t.Errorf("%s talked to the server: %v, want %v", client, got > 0, p.good)
					}
				}
			})
		}
	}
}

// A pod is gone without a word, and its address belongs to another one: our
// client has a session with the first, directly or kept through the gateway, which
// must not carry what is meant for the second. That one even has the same identity.
func TestPodAddressIsReused(t *testing.T) {
	need(t)
	for _, hop := range []string{"near", "far"} {
		t.Run(hop, func(t *testing.T) {
			service := vip(hop+"-tape", 80)
			answers := func(name string) cell { return cell{"client-ours", name, hop, service} }
			stop := servePod(t, "old")
			recovers(t, answers("old"))
			works(t, answers("old"), 20) // by a session that is kept
			held := must(here.open(answers("old"), verbEcho))(t)
			defer held.Close()

			stop() // sessions stay
			defer servePod(t, "new")()
			for _, file := range []string{"mesh-client.yaml", "mesh-gateway.yaml"} {
				oldPod := "{uid: " + hop + "-tape,"
				newPod := "{uid: " + hop + "-tape-2,"
				check(t, here.edit(file, oldPod, newPod))
				defer func() { check(t, here.edit(file, newPod, oldPod)) }()
			}
			recovers(t, answers("new"))
			works(t, answers("new"), 100)
		})
	}
}

// servePod is a pod at the address of near-tape that says its name. The function
// it returns makes it deaf for new sessions, no more.
func servePod(t *testing.T, name string) (stop func()) {
	t.Helper()
	r := &recorder{ids: openCA(t), sessions: map[string][]*recorded{}}
	return r.serve(t, "server-tape", "demo/pay", func(_ context.Context, in *hbone.Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		defer st.Close()
		var verb [1]byte
		if _, err := io.ReadFull(st, verb[:]); err == nil && verb[0] == verbWho {
			io.WriteString(st, name)
			st.CloseWrite()
		}
		io.Copy(io.Discard, st)
	})
}
