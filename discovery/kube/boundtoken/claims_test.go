package boundtoken

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
)

// Whatever a token says: it is read without a panic, and what is refused has a reason of
// the closed set; what is accepted names an account, a pod and an expiry.
func FuzzReadClaims(f *testing.F) {
	good, _ := json.Marshal(token{nodeproxy, "np-1", "uid-1", "node-1", []string{ours}, time.Unix(2_000_000_000, 0), issuer}.body())
	for _, s := range []string{string(good), `{}`, `[]`, `{"aud":"x","exp":1e300}`, `{"aud":[1]}`, `{"exp":-1,"sub":"system:serviceaccount:a:b"}`, `{"kubernetes.io":null}`, `{"exp":1.5,"nbf":"x"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := readClaims(body)
		if err != nil {
			var r *Refusal
			if !errors.As(err, &r) || r.Reason != Malformed && r.Reason != NotBound {
				t.Fatalf("refused for %q: %v", ReasonOf(err), err)
			}
			return
		}
		if c.Account.Namespace == "" || c.Account.Name == "" || c.Pod == "" || c.UID == "" || c.Expires.IsZero() {
			t.Fatalf("accepted %+v", c)
		}
		if err := c.check(ours, []pods.Account{nodeproxy}, "", c.Expires); err == nil {
			t.Fatal("a token counts at its expiry")
		}
	})
}

// No text that was not signed by the key is ever taken for a token.
func FuzzVerify(f *testing.F) {
	s := newSigner(f, "k1")
	keys := keySet{Issuer: issuer, Fetched: time.Now()}
	keys.Keys.Keys = append(keys.Keys.Keys, s.public())
	good := s.sign(f, token{nodeproxy, "np-1", "uid-1", "node-1", []string{ours}, time.Unix(2_000_000_000, 0), issuer}.body())
	for _, x := range []string{good, "", "..", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", good[:len(good)-2], good + "A"} {
		f.Add(x)
	}
	want, _ := payload(good)
	f.Fuzz(func(t *testing.T, text string) {
		if keys.verify(text) != nil {
			return
		}
		if got, err := payload(text); err != nil || string(got) != string(want) {
			t.Fatalf("believed %q, of which nothing is signed", text)
		}
	})
}
