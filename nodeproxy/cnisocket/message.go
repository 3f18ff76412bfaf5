package cnisocket

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Command is what a plugin was called for.
type Command string

// The commands, as CNI calls them.
const (
	Add    Command = "ADD"
	Check  Command = "CHECK"
	Delete Command = "DEL"
	Retain Command = "GC"
)

// Request is what a plugin says of one pod, or, for Retain, of all.
type Request struct {
	Version    int          `json:"version"`
	Command    Command      `json:"command"`
	Namespace  string       `json:"namespace,omitempty"` // of Kubernetes
	Name       string       `json:"name,omitempty"`
	UID        string       `json:"uid,omitempty"`
	Container  string       `json:"container,omitempty"` // of the sandbox: each attempt to start a pod has its own
	Addresses  []netip.Addr `json:"addresses,omitempty"` // at the interface that it was given
	DNS        *DNS         `json:"dns,omitempty"`       // nil: the runtime has not said
	WaitMS     int          `json:"waitMs,omitempty"`    // how long a verdict is waited for
	Containers []string     `json:"containers,omitempty"`
}

// DNS is what the pod's resolv.conf will say.
type DNS struct {
	Servers []string `json:"servers,omitempty"`
	Search  []string `json:"search,omitempty"`
	Options []string `json:"options,omitempty"`
}

// Verdict is what a node proxy answers.
type Verdict string

// The verdicts.
const (
	Captured Verdict = "captured"
	Outside  Verdict = "outside"  // the pod is not in the mesh
	Unknown  Verdict = "unknown"  // nobody has told the node proxy of this pod in the time that it had
	Failed   Verdict = "failed"   // Reason says why
	Stopping Verdict = "stopping" // ask the next node proxy
	Done     Verdict = "done"     // of Delete and Retain
	Refused  Verdict = "refused"  // the request makes no sense, as Reason says
)

// Reply is what a node proxy says of a request.
type Reply struct {
	Version int     `json:"version"`
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
}

// version of the protocol: a later one adds fields, which are ignored here.
const version = 1

// Bounds of one message.
const (
	maxMessage    = 64 << 10
	maxName       = 253
	maxAddresses  = 16
	maxLines      = 32 // of each of DNS
	maxWait       = time.Minute
	maxContainers = 4096
	maxReason     = 1024
)

// ErrTooLong is that of a request that does not fit into a message.
var ErrTooLong = fmt.Errorf("request of more than %d bytes", maxMessage)

func (r *Request) encode() ([]byte, error) {
	r.Version = version
	b, err := json.Marshal(r)
	if err == nil && len(b) > maxMessage {
		err = ErrTooLong
	}
	return b, err
}

// decode reads and checks a request; an error names the field, its value and what is wanted.
func decode(b []byte) (r Request, err error) {
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("the request is no JSON of isthmus-cni: %w", err)
	}
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%s: %.80q: want %s", field, fmt.Sprint(value), want)
	}
	if r.Version < version {
		return r, bad("version", r.Version, "1 or later")
	}
	switch r.Command {
	case Add, Check, Delete:
		if !word(r.UID) {
			return r, bad("uid", r.UID, "the UID of a pod: 1 to 253 printable characters without a space")
		}
		if !word(r.Container) {
			return r, bad("container", r.Container, "the ID of a sandbox: 1 to 253 printable characters without a space")
		}
	case Retain:
	default:
		return r, bad("command", r.Command, "ADD, CHECK, DEL or GC")
	}
	if len(r.Namespace) > maxName || len(r.Name) > maxName {
		return r, bad("name", r.Namespace+"/"+r.Name, "at most 253 characters each")
	}
	if len(r.Addresses) > maxAddresses {
		return r, bad("addresses", len(r.Addresses), "at most 16")
	}
	for i, a := range r.Addresses {
		if a = a.Unmap(); !a.IsGlobalUnicast() || a.Zone() != "" {
			return r, bad(fmt.Sprintf("addresses[%d]", i), a, "a unicast address without a zone")
		}
		r.Addresses[i] = a
	}
	if r.Command == Add && len(r.Addresses) == 0 {
		return r, bad("addresses", "", "the addresses that the pod was given, at least one")
	}
	if r.WaitMS < 0 || r.WaitMS > int(maxWait.Milliseconds()) {
		return r, bad("waitMs", r.WaitMS, "0 to 60000")
	}
	if len(r.Containers) > maxContainers {
		return r, bad("containers", len(r.Containers), "at most 4096")
	}
	if d := r.DNS; d != nil {
		for _, list := range [][]string{d.Servers, d.Search, d.Options} {
			if len(list) > maxLines || slices.ContainsFunc(list, func(s string) bool { return !word(s) }) {
				return r, bad("dns", list, "at most 32 words each")
			}
		}
	}
	return r, nil
}

// word reports whether s is 1 to 253 printable ASCII characters without a space.
func word(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

func (r Reply) encode() []byte {
	r.Version, r.Reason = version, r.Reason[:min(len(r.Reason), maxReason)]
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // of strings there is none
	}
	return b
}

func decodeReply(b []byte) (r Reply, err error) {
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("the reply is no JSON of a node proxy: %w", err)
	}
	if r.Version < version || r.Verdict == "" {
		return r, fmt.Errorf("the reply %.80q has no version or no verdict", b)
	}
	return r, nil
}
