package istioclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/isthmus-mesh/isthmus/identity/istioca/istiocapb"
	"github.com/isthmus-mesh/isthmus/internal/secretfile"
)

// Config says whom to ask, and as whom. Cluster may be empty.
type Config struct {
	Address    string // host:port
	ServerName string // that the server must prove
	Root       string // file of the roots that it may prove it by
	Token      string // file of the bearer token
	Cluster    string // what the CA calls the cluster that has issued the token
}

const (
	// maxAnswer bounds an answer; a chain of four with a bundle of a hundred roots has
	// about 200 KiB.
	maxAnswer = 1 << 20
	// maxFile bounds the files of token and roots.
	maxFile = 1 << 20
	// idle is how long a connection without a request is kept: the next one proves its
	// name by the roots of then.
	idle = time.Minute
	// connectTime is how long a connection may take, as for ztunnel.
	connectTime = 5 * time.Second
)

// method is Istio's name for the one that there is.
const method = "/istio.v1.auth.IstioCertificateService/CreateCertificate"

// impersonated is the key of the request's metadata by which a proxy of many workloads
// says for which of them it asks.
const impersonated = "ImpersonatedIdentity"

// Client asks one CA. Make it with New; safe for concurrent use.
type Client struct {
	cfg  Config
	conn *grpc.ClientConn
}

// New returns a client that has not connected yet.
func New(cfg Config) (*Client, error) {
	c := &Client{cfg: cfg}
	tlsConfig := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName,
		InsecureSkipVerify: true, // VerifyConnection does it all, by the roots of that moment
		VerifyConnection:   c.verify,
	}
	conn, err := grpc.NewClient(cfg.Address, grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig)), grpc.WithNoProxy(), grpc.WithIdleTimeout(idle), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTime, Backoff: backoff.Config{BaseDelay: 500 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}))
	if err != nil {
		return nil, fmt.Errorf("identity.address: %q: %w", cfg.Address, err)
	}
	c.conn = conn
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// verify says whether the server is who it should be.
func (c *Client) verify(cs tls.ConnectionState) error {
	data, err := readFile(c.cfg.Root)
	if err != nil {
		return fmt.Errorf("identity.root: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return fmt.Errorf("identity.root: %s holds no certificate: write the roots of the CA there", c.cfg.Root)
	}
	if len(cs.PeerCertificates) == 0 {
		return errors.New("it shows no certificate")
	}
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), DNSName: c.cfg.ServerName}
	for _, x := range cs.PeerCertificates[1:] {
		o.Intermediates.AddCert(x)
	}
	if _, err := cs.PeerCertificates[0].Verify(o); err != nil {
		return fmt.Errorf("the certificate of %s does not hold by %s: %w: put the root of that CA into identity.root, or correct identity.serverName", c.cfg.ServerName, c.cfg.Root, err)
	}
	return nil
}

// Token returns the bearer token as it is now.
func (c *Client) Token() (string, error) {
	data, err := secretfile.Read(c.cfg.Token)
	if err != nil {
		return "", fmt.Errorf("identity.token: %w: mount a projected service-account token of audience istio-ca there", err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", fmt.Errorf("identity.token: %s is empty: mount a projected service-account token of audience istio-ca there", c.cfg.Token)
	}
	return text, nil
}

// Account is whose token it is, by its own word: namespace and name; not ok if it does
// not say.
func Account(token string) (namespace, name string, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", "", false
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", "", false
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	if json.Unmarshal(body, &claims) != nil {
		return "", "", false
	}
	account, ok := strings.CutPrefix(claims.Subject, "system:serviceaccount:")
	if !ok {
		return "", "", false
	}
	return strings.Cut(account, ":")
}

// Create asks for a certificate for csr, in PEM, which is to live as long as ttl. impersonate is the
// identity of another one than the token's holder; empty: there is none. It returns the
// parts of the answer as they came: leaf, intermediates, and the roots last.
func (c *Client) Create(ctx context.Context, token, csr, impersonate string, ttl time.Duration) ([]string, error) {
	in := &istiocapb.IstioCertificateRequest{Csr: csr, ValidityDuration: int64(ttl / time.Second)}
	if impersonate != "" {
		in.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{impersonated: structpb.NewStringValue(impersonate)}}
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	if c.cfg.Cluster != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "clusterid", c.cfg.Cluster)
	}
	out := new(istiocapb.IstioCertificateResponse)
	if err := c.conn.Invoke(ctx, method, in, out); err != nil {
		return nil, c.explain(err)
	}
	return out.GetCertChain(), nil
}

// explain adds to what a CA says which key of the configuration it is about.
func (c *Client) explain(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.Unauthenticated:
		return fmt.Errorf("identity.token: the CA at %s does not believe the token in %s: %s", c.cfg.Address, c.cfg.Token, clip(s.Message()))
	case codes.PermissionDenied:
		return fmt.Errorf("the CA at %s refuses: %s", c.cfg.Address, clip(s.Message()))
	case codes.Unavailable, codes.DeadlineExceeded:
		return fmt.Errorf("identity.address: the CA at %s does not answer: %s", c.cfg.Address, clip(s.Message()))
	}
	return fmt.Errorf("the CA at %s: %s: %s", c.cfg.Address, s.Code(), clip(s.Message()))
}

// clip bounds what a CA can put into a line.
func clip(s string) string {
	const length = 600
	if len(s) <= length {
		return s
	}
	return s[:length] + "…"
}

// HostOf returns the host of host:port.
func HostOf(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("%q: write host:port, such as isthmus-controller.isthmus-system.svc:15012", address)
	}
	return host, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return data, err
}
