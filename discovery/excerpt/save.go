package excerpt

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// format names the form of what is saved; another one is not read.
const format = "isthmus-discovery-cache/1"

// MaxSaved is how many bytes are saved at most, and read.
const MaxSaved = 64 << 20

// header is the first line of what is saved.
type header struct {
	Format      string    `json:"format"`
	Network     string    `json:"network"`
	Node        string    `json:"node"`
	TrustDomain string    `json:"trustDomain"`
	Saved       time.Time `json:"saved"`
	Gateway     string    `json:"gateway"` // that led
	SHA256      string    `json:"sha256"`  // of the rest
}

// saved is the rest.
type saved struct {
	Networks  []discovery.Network
	Gateways  []discovery.Gateway
	Services  []discovery.Service
	Workloads []discovery.Workload
	Names     map[string]savedName
	Policies  map[string]string // texts, by name
	Revisions map[string]uint64 // of these
	Deleted   map[string]uint64 // names of policies, and up to which revision it is known that there is none
	Root      string            // namespace of policies for all; "": no gateway has told policies
}

type savedName struct{ Service, Workload string }

// Save returns what is held, to be restored by the next process of this node proxy.
func (h *Held) Save(now time.Time) ([]byte, error) {
	s := saved{Networks: h.base.networks, Gateways: h.base.gateways, Names: map[string]savedName{}, Policies: map[string]string{}, Revisions: map[string]uint64{}, Deleted: map[string]uint64{}, Root: h.base.root}
	for name, p := range h.policies {
		if s.Policies[name] = p.text; p.revision > 0 {
			s.Revisions[name] = p.revision
		}
	}
	for name, d := range h.deleted {
		s.Deleted[name] = d.revision
	}
	for _, x := range h.services {
		s.Services = append(s.Services, x)
	}
	for _, w := range h.pods {
		s.Workloads = append(s.Workloads, w)
	}
	for asked, t := range h.names {
		if t != (target{}) {
			s.Names[asked] = savedName{t.host, t.uid}
		}
	}
	body, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("save discovery: %w", err)
	}
	sum := sha256.Sum256(body)
	head, err := json.Marshal(header{format, h.network, h.node, h.trustDomain, now.UTC(), h.leader, hex.EncodeToString(sum[:])})
	if err != nil {
		return nil, fmt.Errorf("save discovery: %w", err)
	}
	if n := len(head) + 1 + len(body); n > MaxSaved {
		return nil, fmt.Errorf("save discovery: %d bytes are more than %d", n, MaxSaved)
	}
	return append(append(head, '\n'), body...), nil
}

// RestorePolicies takes the policies of what Save returned, before any gateway tells: what the first one does
// not list of them is kept for a while, as it may not have heard of it yet. Damaged data has none.
func (h *Held) RestorePolicies(data []byte) {
	s, _, err := h.read(data)
	if err != nil || h.began || h.base.root != "" {
		return
	}
	h.takeSavedPolicies(s)
	h.savedLabels = map[string]map[string]string{}
	for _, w := range s.Workloads {
		if w.Node == h.node && len(w.Labels) > 0 && len(h.savedLabels) < MaxLocal {
			h.savedLabels[w.UID] = w.Labels
		}
	}
}

func (h *Held) takeSavedPolicies(s saved) {
	if h.tells = s.Root != ""; !h.tells {
		return
	}
	h.base.root = s.Root
	h.touch(discovery.RootNamespaceKey())
	for name, text := range s.Policies {
		h.putPolicy(name, h.readTold(name, toldPolicy{text, s.Revisions[name]}))
	}
	for name, revision := range s.Deleted {
		if len(h.deleted) < maxDeleted {
			h.deleted[name] = deletion{revision: revision} // its time begins with the first gateway
		}
	}
}

// Restore takes what Save returned, if nothing is held yet. It returns what to change, the
// names that were asked for, and when it was saved. An error says what is wrong with it:
// nothing has changed then.
func (h *Held) Restore(data []byte) (changes []discovery.Change, asked []string, at time.Time, err error) {
	s, x, err := h.read(data)
	if err != nil {
		return nil, nil, at, err
	}
	if h.began {
		return nil, nil, at, nil
	}
	h.setBase(base{h.trustDomain, s.Root, s.Networks, s.Gateways})
	h.takeSavedPolicies(s)
	for name, t := range s.Names {
		h.mean(name, target{t.Service, t.Workload})
		asked = append(asked, name)
	}
	// Last what is of this node, which has room beside the rest; pods before services, as they say which of
	// these are of this node's.
	for _, local := range []bool{false, true} {
		for _, w := range s.Workloads {
			if w.Network = h.network; (w.Node == h.node) == local {
				h.putPod(w)
			}
		}
	}
	for _, local := range []bool{false, true} {
		for _, x := range s.Services {
			host := x.Hostname
			if host == "" {
				host = hostnameOf(x.Name, x.Namespace)
			}
			if h.local(host) == local {
				h.putService(host, x)
			}
		}
	}
	h.began = true
	return h.changes(), asked, x.Saved, nil
}

// read checks that data is what Save returned for this node proxy.
func (h *Held) read(data []byte) (s saved, x header, err error) {
	head, body, _ := bytes.Cut(data, []byte{'\n'})
	if err := json.Unmarshal(head, &x); err != nil {
		return s, x, fmt.Errorf("it is damaged, or something else: %w", err)
	}
	sum := sha256.Sum256(body)
	switch {
	case x.Format != format:
		return s, x, fmt.Errorf("its format is %.60q: this version reads %q", x.Format, format)
	case x.Network != h.network || x.Node != h.node || x.TrustDomain != h.trustDomain:
		return s, x, fmt.Errorf("it is of node %.80q of network %.80q in trust domain %.80q: this is node %q of network %q in %q", x.Node, x.Network, x.TrustDomain, h.node, h.network, h.trustDomain)
	case x.SHA256 != hex.EncodeToString(sum[:]):
		return s, x, fmt.Errorf("it is damaged: its content is not what was written")
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return s, x, fmt.Errorf("it is damaged: %w", err)
	}
	return s, x, nil
}
