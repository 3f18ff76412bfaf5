package boundtoken

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/rs/zerolog"
	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
)

const (
	ours   = "isthmus-gateway"
	issuer = "https://kubernetes.default.svc"
)

// home is where tokens are shown from.
var home = netip.MustParseAddr("10.0.0.7")

var (
	nodeproxy  = pods.Account{Namespace: "isthmus-system", Name: "nodeproxy"}
	gateways   = pods.Account{Namespace: "isthmus-system", Name: "gateway"}
	controller = pods.Account{Namespace: "isthmus-system", Name: "controller"}
	shop       = pods.Account{Namespace: "demo", Name: "shop"}
)

// signer signs tokens as an API server does.
type signer struct {
	id  string
	key *ecdsa.PrivateKey
}

func newSigner(t testing.TB, id string) signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{id, k}
}

func (s signer) sign(t testing.TB, body any) string {
	t.Helper()
	j, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	w, err := j.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := w.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (s signer) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: s.key.Public(), KeyID: s.id, Algorithm: string(jose.ES256), Use: "sig"}
}

// token is what one is made from; zero fields are left out.
type token struct {
	account   pods.Account
	pod, uid  string
	node      string
	audiences []string
	expires   time.Time
	issuer    string
}

func (x token) body() map[string]any {
	private := map[string]any{"namespace": x.account.Namespace, "serviceaccount": map[string]any{"name": x.account.Name, "uid": "sa"}}
	if x.pod != "" {
		private["pod"] = map[string]any{"name": x.pod, "uid": x.uid}
	}
	if x.node != "" {
		private["node"] = map[string]any{"name": x.node, "uid": "n"}
	}
	return map[string]any{"iss": x.issuer, "sub": userName(x.account), "aud": x.audiences, "exp": x.expires.Unix(), "nbf": time.Now().Add(-time.Minute).Unix(), "kubernetes.io": private}
}

// server is an API server: it has signers, and knows which pods there are.
type server struct {
	t       testing.TB
	mu      sync.Mutex
	signers []signer
	away    error           // it does not answer
	keyless error           // nor give its keys
	gone    map[string]bool // UIDs of pods that are gone
	reviews int
	asked   int           // for keys
	takes   time.Duration // for a review
	now     int           // reviews that are under way
	most    int           // of them, at once
}

func (s *server) Review(ctx context.Context, text, audience string) (authnv1.TokenReviewStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reviews++
	s.now++
	s.most = max(s.most, s.now)
	defer func() { s.now-- }()
	if s.takes > 0 {
		s.mu.Unlock()
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return authnv1.TokenReviewStatus{}, ctx.Err()
		}
	}
	if s.away != nil {
		return authnv1.TokenReviewStatus{}, s.away
	}
	set := jose.JSONWebKeySet{}
	for _, x := range s.signers {
		set.Keys = append(set.Keys, x.public())
	}
	if err := (keySet{Keys: set}).verify(text); err != nil {
		return authnv1.TokenReviewStatus{Error: err.Error()}, nil
	}
	body, _ := payload(text)
	c, err := readClaims(body)
	if err != nil || !time.Now().Before(c.Expires) || s.gone[c.UID] {
		return authnv1.TokenReviewStatus{Error: "invalid bearer token"}, nil
	}
	if !slices.Contains(c.Audiences, audience) {
		return authnv1.TokenReviewStatus{Error: "wrong audience"}, nil
	}
	u := authnv1.UserInfo{Username: userName(c.Account), Extra: map[string]authnv1.ExtraValue{extraPod: {c.Pod}, extraUID: {c.UID}}}
	if c.Node != "" {
		u.Extra[extraNode] = authnv1.ExtraValue{c.Node}
	}
	return authnv1.TokenReviewStatus{Authenticated: true, Audiences: []string{audience}, User: u}, nil
}

func (s *server) Keys(context.Context) ([]byte, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.away != nil || s.keyless != nil {
		return nil, nil, errors.Join(s.away, s.keyless)
	}
	set := jose.JSONWebKeySet{}
	for _, x := range s.signers {
		set.Keys = append(set.Keys, x.public())
	}
	b, err := json.Marshal(set)
	return fmt.Appendf(nil, `{"issuer":%q}`, issuer), b, err
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// count reads one of the counts of s.
func (s *server) count(n *int) (now int) {
	s.set(func() { now = *n })
	return now
}

// world is an API server, the pods that its informer has told of, and a Reviewer.
type world struct {
	t      testing.TB
	server *server
	index  *pods.Index
	*Reviewer
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, server: &server{t: t, signers: []signer{newSigner(t, "k1")}, gone: map[string]bool{}}, index: pods.NewIndex(nil)}
	w.index.SetKnown()
	cfg := Config{Audience: ours, Accounts: []pods.Account{nodeproxy}, Pods: w.index, Log: zerolog.Nop()}
	for _, f := range change {
		f(&cfg)
	}
	w.Reviewer = New(w.server, cfg)
	return w
}

// fetch has the keys fetched once.
func (w *world) fetch() {
	w.t.Helper()
	if err := errors.Join(w.fetchKeys(w.t.Context()), w.keepKeys()); err != nil {
		w.t.Fatal(err)
	}
}

// run makes a pod, and returns its token.
func (w *world) run(account pods.Account, name, uid, node string, change ...func(*token)) string {
	w.index.Set(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: name, UID: types.UID(uid)},
		Spec: corev1.PodSpec{ServiceAccountName: account.Name, NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	return w.token(account, name, uid, node, change...)
}

func (w *world) token(account pods.Account, name, uid, node string, change ...func(*token)) string {
	x := token{account, name, uid, node, []string{ours}, time.Now().Add(time.Hour), issuer}
	for _, f := range change {
		f(&x)
	}
	return w.server.signers[0].sign(w.t, x.body())
}

// end removes a pod.
func (w *world) end(account pods.Account, name, uid string) {
	w.index.Remove(account.Namespace, name)
	w.server.set(func() { w.server.gone[uid] = true })
}
