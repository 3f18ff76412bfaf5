package boundtoken

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
)

const (
	// maxToken bounds a token in bytes; one that is bound to a pod has about 1 500.
	maxToken = 16 << 10
	// maxName bounds each name in one: those of Kubernetes have at most 253.
	maxName = 253
)

// claims are what a token says of itself. Nothing of it is proved by that.
type claims struct {
	Issuer    string
	Audiences []string
	Account   pods.Account
	Pod, UID  string // of the pod that it is bound to
	Node      string // on which that pod was when it was issued; empty if it does not say
	Expires   time.Time
	NotBefore time.Time
}

// wireClaims are the claims as Kubernetes writes them.
type wireClaims struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Audience  audience `json:"aud"`
	Expiry    *seconds `json:"exp"`
	NotBefore *seconds `json:"nbf"`
	Private   struct {
		Namespace string `json:"namespace"`
		Account   ref    `json:"serviceaccount"`
		Pod       *ref   `json:"pod"`
		Node      *ref   `json:"node"`
	} `json:"kubernetes.io"`
}

type ref struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// audience is one string, or several (RFC 7519 §4.1.3).
type audience []string

func (a *audience) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*a = audience{one}
		return nil
	}
	var all []string
	if err := json.Unmarshal(b, &all); err != nil {
		return errors.New("aud is neither a string nor a list of strings")
	}
	*a = all
	return nil
}

// seconds is a NumericDate (RFC 7519 §2), which may have a fraction.
type seconds float64

// maxSeconds is 1 January of the year 10 000.
const maxSeconds = 253402300800

func (s seconds) time() (time.Time, error) {
	if !(s >= 0 && s < maxSeconds) {
		return time.Time{}, fmt.Errorf("%v is no instant", float64(s))
	}
	return time.Unix(int64(s), 0), nil
}

// payload returns the middle part of a token in the compact form (RFC 7515 §7.1).
func payload(token string) ([]byte, error) {
	if len(token) > maxToken {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(token), maxToken)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return nil, errors.New("it does not have three parts")
	}
	return base64.RawURLEncoding.DecodeString(parts[1])
}

// readClaims reads what a token with this payload says of itself. It must be of a service account, bound to
// a pod, and expire.
func readClaims(body []byte) (claims, error) {
	var err error
	var w wireClaims
	if err := json.Unmarshal(body, &w); err != nil {
		return claims{}, refuse(Malformed, "the token is no JWT: %w", err)
	}
	c := claims{Issuer: w.Issuer, Audiences: w.Audience, Account: pods.Account{Namespace: w.Private.Namespace, Name: w.Private.Account.Name}}
	if w.Expiry == nil {
		return claims{}, refuse(Malformed, "the token never expires: mount a projected one with expirationSeconds")
	}
	if c.Expires, err = w.Expiry.time(); err != nil {
		return claims{}, refuse(Malformed, "the token is no JWT: exp: %w", err)
	}
	if w.NotBefore != nil {
		if c.NotBefore, err = w.NotBefore.time(); err != nil {
			return claims{}, refuse(Malformed, "the token is no JWT: nbf: %w", err)
		}
	}
	if w.Private.Node != nil {
		c.Node = w.Private.Node.Name
	}
	if w.Private.Pod != nil {
		c.Pod, c.UID = w.Private.Pod.Name, w.Private.Pod.UID
	}
	for _, s := range []string{c.Account.Namespace, c.Account.Name, c.Pod, c.UID, c.Node} {
		if !isName(s) {
			return claims{}, refuse(Malformed, "the token names %.80q, which can be no name of an object of Kubernetes: show a projected service-account token (serviceAccountToken in a volume)", s)
		}
	}
	switch {
	case c.Account.Namespace == "" || c.Account.Name == "" || w.Subject != userName(c.Account):
		return claims{}, refuse(Malformed, "the token is not that of a service account: sub is %.80q", w.Subject)
	case c.UID == "" || c.Pod == "":
		return claims{}, refuse(NotBound, "the token of %s is not bound to a pod: mount a projected one", c.Account)
	}
	return c, nil
}

// isName reports whether s can be a name of Kubernetes, or is empty.
func isName(s string) bool {
	return len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' })
}

// userName is what the API server calls an account.
func userName(a pods.Account) string {
	return "system:serviceaccount:" + a.Namespace + ":" + a.Name
}

// check says whether who holds a token with these claims, if they are true, may be
// believed at now.
func (c claims) check(audience string, accounts []pods.Account, issuer string, now time.Time) error {
	switch {
	case !slices.Contains(c.Audiences, audience):
		return refuse(WrongAudience, "the token of pod %s of %s is for audience %.200q: want %q", c.Pod, c.Account, c.Audiences, audience)
	case !slices.Contains(accounts, c.Account):
		return refuse(WrongAccount, "the token is of service account %s: want %s", c.Account, list(accounts))
	case !now.Before(c.Expires):
		return refuse(Expired, "the token of pod %s of %s expired at %s: read its file again, which the kubelet replaces in time", c.Pod, c.Account, c.Expires.UTC().Format(time.RFC3339))
	case now.Add(skew).Before(c.NotBefore):
		return refuse(Expired, "the token of pod %s of %s is not valid before %s: compare clocks", c.Pod, c.Account, c.NotBefore.UTC().Format(time.RFC3339))
	case issuer != "" && c.Issuer != issuer:
		return refuse(Unsigned, "the token was issued by %.200q: this cluster's issuer is %q", c.Issuer, issuer)
	}
	return nil
}

// skew is how far the clock of the API server may be ahead of ours.
const skew = time.Minute

func list(accounts []pods.Account) string {
	var s []string
	for _, a := range accounts {
		s = append(s, a.String())
	}
	return strings.Join(s, " or ")
}
