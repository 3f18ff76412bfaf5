package policy

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// The kinds of objects.
const (
	KindAuthorization      = "AuthorizationPolicy"
	KindPeerAuthentication = "PeerAuthentication"
)

// Name names a policy among all. The zero Name is none.
type Name struct{ Kind, Namespace, Name string }

// Compare orders names by kind, namespace and name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Kind, o.Kind), cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// String returns, for example, "AuthorizationPolicy demo/allow-web"; "" for none.
func (n Name) String() string {
	if n == (Name{}) {
		return ""
	}
	return n.Kind + " " + n.Namespace + "/" + n.Name
}

// ParseName reads what String returns.
func ParseName(s string) (n Name) {
	var rest string
	n.Kind, rest, _ = strings.Cut(s, " ")
	n.Namespace, n.Name, _ = strings.Cut(rest, "/")
	return n
}

// Object is an *Authorization or a *PeerAuthentication. It is immutable.
type Object interface {
	Name() Name
	Text() string
	Revised() uint64
}

// Selector are labels that a workload must have, all of them. One without labels selects every
// workload.
type Selector map[string]string

// Selects reports whether labels have all of s.
func (s Selector) Selects(labels map[string]string) bool {
	for k, v := range s {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// Action is what an Authorization does with the connections that it matches.
type Action uint8

// The actions.
const (
	Allow Action = iota
	Deny
)

// Authorization is an AuthorizationPolicy. It is for the workloads of its namespace that its
// selector selects; one in the root namespace is for those of every namespace. It matches if any
// of its rules does: one without rules never does.
type Authorization struct {
	Metadata
	Selector Selector
	Action   Action
	Rules    []Rule
	DryRun   bool // changes no decision

	pointing []string // principals as they are written that the trust domain of the mesh has been put into
}

// Metadata names an object and says since when it is there.
type Metadata struct {
	Namespace string
	Called    string
	Created   time.Time // zero: it does not say
	// Revision is metadata.resourceVersion: of two states of one object, and of all of its kind, the later one
	// has the higher, until the API server is restored from a backup. Zero: there is none that is a number.
	Revision uint64

	text string
}

// Revised returns the Revision.
func (m Metadata) Revised() uint64 { return m.Revision }

// Revisions say up to which revision all is known that became of the policies of each kind. Zero: it is not known.
type Revisions struct{ Authorizations, PeerAuthentications uint64 }

// Of returns that of a kind.
func (r Revisions) Of(kind string) uint64 {
	if kind == KindPeerAuthentication {
		return r.PeerAuthentications
	}
	return r.Authorizations
}

// Text is [Write] of the object that was parsed; "" if none was.
func (m Metadata) Text() string { return m.text }

// Name names a.
func (a *Authorization) Name() Name { return Name{KindAuthorization, a.Namespace, a.Called} }

// Rule matches if all of its clauses do. One without clauses always does.
type Rule []Clause

// Clause matches if any of its matches does. One without matches always does.
type Clause []Match

// Match matches if all of its fields do: of Is, if it has any values, one must match, and of Not
// none may. A Match without any value is skipped: it never matches.
type Match struct {
	Principals       Field[Text] // SPIFFE IDs without "spiffe://"; see PointerDomain
	Namespaces       Field[Text] // whatever the trust domain
	ServiceAccounts  Field[Account]
	SourceIPs        Field[netip.Prefix]
	DestinationIPs   Field[netip.Prefix]
	DestinationPorts Field[uint16] // on which the application listens
}

// Field is what one property of a connection may be, and may not.
type Field[T any] struct{ Is, Not []T }

// never is a rule that never matches.
func never() Rule { return Rule{Clause{Match{}}} }

// Text matches a text.
type Text struct {
	How   How
	Value string
}

// How a Text matches.
type How uint8

// The ways of matching. Present matches every text that is not empty.
const (
	Exact How = iota
	Prefix
	Suffix
	Present
)

// TextOf reads Istio's notation: "*", "*end", "begin*", or the text itself.
func TextOf(s string) Text {
	if s == "*" {
		return Text{How: Present}
	}
	if end, ok := strings.CutPrefix(s, "*"); ok {
		return Text{Suffix, end}
	}
	if begin, ok := strings.CutSuffix(s, "*"); ok {
		return Text{Prefix, begin}
	}
	return Text{Exact, s}
}

// Account is a service account, whatever the trust domain.
type Account struct{ Namespace, Name string }

// PeerAuthentication says whether connections must be mutual TLS. One without selector is for
// its namespace, and one in the root namespace for all; there one with a selector is for nobody.
// The mode of a port goes before that of the object, and the object with a selector before that of
// the namespace, before that of all. Of several the oldest counts.
type PeerAuthentication struct {
	Metadata
	Selector Selector
	Mode     Mode
	Ports    map[uint16]Mode

	unread bool // something of it was not understood: it goes before all others
}

// Name names p.
func (p *PeerAuthentication) Name() Name { return Name{KindPeerAuthentication, p.Namespace, p.Called} }

// Mode is whether connections must be mutual TLS.
type Mode uint8

// The modes. Unset is that of what goes next; if all are, it is Permissive. Disable is as
// Permissive: tunnels are accepted too.
const (
	Unset Mode = iota
	Disable
	Permissive
	Strict
)

// Workload is what of a workload decides which policies are for it.
type Workload struct {
	Namespace string
	Labels    map[string]string
}

// Connection is what policies are asked about.
type Connection struct {
	Source      spiffeid.ID    // as proven by mutual TLS; zero: there is none
	From        netip.Addr     // the other end of the TCP connection
	Destination netip.AddrPort // of the application
}
