package links

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// File is the other networks whose exports are used, by the file federation.networks:
// the keys that prove them, and what they may claim. A nil one has none. Safe for
// concurrent use.
type File struct {
	path string
	own  string // network

	mu   sync.Mutex
	keys networkkey.Known
	of   map[string]keyfile.Link
	gone map[string]bool // networks that were linked while this process runs, and are not
	read bool            // once at least
	err  error           // of the last reading; what was read before is used
}

// Open reads the file at path; own is the network of this process.
func Open(path, own string) (*File, error) {
	l := &File{path: path, own: own}
	if _, err := l.Reread(); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("federation.networks: %w: put what `isthmus network show` prints on each of the other networks into it, or leave the key out", err)
	} else if err != nil {
		return nil, fmt.Errorf("federation.networks: %w", err)
	}
	return l, nil
}

// Reread reads the file again. changed is whether something else is in force, and true for
// the first reading that succeeds.
func (l *File) Reread() (changed bool, err error) {
	keys, of, err := keyfile.ReadLinks(l.path)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err = err; err != nil {
		return false, err
	}
	delete(keys, l.own)
	delete(of, l.own)
	changed = !l.read || !maps.EqualFunc(keys, l.keys, slices.Equal[[]networkkey.Public]) || !maps.EqualFunc(of, l.of, equalLinks)
	if l.gone == nil {
		l.gone = map[string]bool{}
	}
	for network := range l.of {
		l.gone[network] = true
	}
	for network := range of {
		delete(l.gone, network)
	}
	l.keys, l.of, l.read = keys, of, true
	return changed, nil
}

// Gone reports whether network was linked while this process runs, and is not now.
func (l *File) Gone(network string) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone[network]
}

func equalLinks(a, b keyfile.Link) bool {
	return slices.Equal(a.TrustDomains, b.TrustDomains) && slices.Equal(a.Namespaces, b.Namespaces) && a.MaxCapacity == b.MaxCapacity && a.GatewayServiceAccount == b.GatewayServiceAccount && slices.Equal(a.TrustBundles, b.TrustBundles)
}

// Known are the keys of other networks; they are not to be changed.
func (l *File) Known() networkkey.Known {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keys
}

// Get returns what network may claim; not ok if it is not linked.
func (l *File) Get(network string) (keyfile.Link, bool) {
	if l == nil {
		return keyfile.Link{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	link, ok := l.of[network]
	return link, ok
}

// Most is the greatest weight of one service on network; 0 is no bound.
func (l *File) Most(network string) uint32 {
	link, _ := l.Get(network)
	return link.MaxCapacity
}

// Roots are those that the links believe, by the trust domain that they vouch for.
func (l *File) Roots() map[spiffeid.TrustDomain][]*x509.Certificate {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return keyfile.Roots(l.of)
}

// Has reports whether network is linked.
func (l *File) Has(network string) bool { _, ok := l.Get(network); return ok }

// Names are the networks that are linked, sorted.
func (l *File) Names() []string {
	return slices.Sorted(maps.Keys(l.Known()))
}

// Failure is why the file was not read last; nil: it was.
func (l *File) Failure() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Unread reports whether no reading of the file has succeeded. Which networks are linked is
// then not known. A nil File is known to link none.
func (l *File) Unread() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.read
}

// OpenOrWait is Open, except that a file that does not exist is Unread until a Reread finds
// it.
func OpenOrWait(path, own string) (*File, error) {
	l := &File{path: path, own: own}
	if _, err := l.Reread(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("federation.networks: %w", err)
	}
	return l, nil
}

// Path is where the file is.
func (l *File) Path() string { return l.path }

// Of returns the links of own network that a test wants.
func Of(own string, of map[string]keyfile.Link) *File { return &File{own: own, of: of, read: true} }

// Unlinked says, by network, what is wrong with those of held, which gateways tell of, that
// neither the file nor discovery lists.
func (l *File) Unlinked(held []string, listed func(network string) bool) map[string]string {
	if l == nil {
		return nil
	}
	names := slices.DeleteFunc(l.Names(), func(n string) bool { return slices.Contains(held, n) })
	out := map[string]string{}
	for _, n := range held {
		if n == l.own || l.Has(n) || listed(n) {
			continue
		}
		remedy := fmt.Sprintf("add what `isthmus network show` prints there to %s", l.path)
		if near := strictyaml.Nearest(n, names); near != "" {
			remedy = fmt.Sprintf("did you mean %q in %s? Otherwise add what `isthmus network show` prints there", near, l.path)
		}
		out[n] = fmt.Sprintf("network %s is not linked; its exports are ignored: %s", n, remedy)
	}
	return out
}
