package keyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// Ring is where one gateway finds its keys: the directory of its own network,
// and the file of the networks that it knows, which may list its own one too.
// Without a file it knows only its own.
type Ring struct {
	Dir  string
	List string
}

// Load reads the key of network and those of all networks that are known.
// Errors call the fields of the configuration dirField and listField.
func (r Ring) Load(network, dirField, listField string) (networkkey.Private, networkkey.Known, error) {
	none := networkkey.Private{}
	if r.Dir == "" {
		return none, nil, fmt.Errorf("%s: must be set: the directory of network %q's key; make one with `isthmus network init --dir DIRECTORY --network %s`", dirField, network, network)
	}
	d, err := open(r.Dir, network)
	if err != nil {
		return none, nil, fmt.Errorf("%s: %q: %w", dirField, r.Dir, err)
	}
	if d.Network != network {
		return none, nil, fmt.Errorf("%s: %q has the key of network %q: this gateway serves %q; give the directory of its key, or make one with `isthmus network init --dir DIRECTORY --network %s`", dirField, r.Dir, d.Network, network, network)
	}
	known := networkkey.Known{}
	if r.List != "" {
		if known, err = ReadKnown(r.List); errors.Is(err, fs.ErrNotExist) {
			return none, nil, fmt.Errorf("%s: %w: put what `isthmus network show` prints on each of the other networks into it, or leave the key out", listField, err)
		} else if err != nil {
			return none, nil, fmt.Errorf("%s: %w", listField, err)
		}
	}
	if listed, there := known[network]; there && !slices.Contains(listed, d.Key.Public()) {
		return none, nil, fmt.Errorf("%s: %s lists other keys of network %q than %s has (fingerprint %s): replace them with what `isthmus network show --dir %s` prints", listField, r.List, network, r.Dir, d.Key.Public().Fingerprint(), r.Dir)
	}
	maps.Copy(known, d.Known())
	if err := known.Validate(); err != nil {
		return none, nil, fmt.Errorf("%s: %s: %w", listField, r.List, err)
	}
	return d.Key, known, nil
}

// ListsOwn reports whether List is that of Dir, which has room for no other network.
func (r Ring) ListsOwn() bool {
	list, err := os.Stat(r.List)
	if err != nil {
		return false
	}
	own, err := os.Stat(filepath.Join(r.Dir, ListFile))
	return err == nil && os.SameFile(list, own)
}

// RingIn is the ring of network below a directory that InitAll fills.
func RingIn(dir, network string) Ring {
	return Ring{Dir: filepath.Join(dir, url.PathEscape(network)), List: filepath.Join(dir, "networks.yaml")}
}

// InitAll makes a key for each of networks that has none yet, below dir, and one
// file that lists them all, in which it leaves what was written there of their links,
// and other networks. It returns the ring of each. It is for meshes on
// one machine: whoever can read dir can speak for every network.
func InitAll(dir string, networks []string, random io.Reader) (map[string]Ring, error) {
	list := RingIn(dir, "").List
	known, links, err := ReadLinks(list)
	if errors.Is(err, fs.ErrNotExist) {
		known, links = networkkey.Known{}, map[string]Link{}
	} else if err != nil {
		return nil, err
	}
	rings, was := map[string]Ring{}, maps.Clone(known)
	for _, n := range networks {
		r := RingIn(dir, n)
		d, err := Open(r.Dir)
		if errors.Is(err, fs.ErrNotExist) {
			d, err = Init(r.Dir, n, random)
		}
		if err != nil {
			return nil, err
		}
		rings[n] = r
		maps.Copy(known, d.Known())
	}
	if maps.EqualFunc(known, was, slices.Equal[[]networkkey.Public]) {
		return rings, nil // as it is, with comments
	}
	return rings, writeFile(list, formatLinks(known, links))
}
