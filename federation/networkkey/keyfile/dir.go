package keyfile

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/internal/secretfile"
	"github.com/isthmus-mesh/isthmus/internal/tempfile"
)

// Files of a directory.
const (
	KeyFile  = "key.pem"      // signs
	NextFile = "next-key.pem" // will sign, once everybody knows it
	ListFile = "network.yaml" // what other networks need
	// FinishedFile has the time of the last Finish, RFC 3339, until Forget.
	FinishedFile = "finished"
)

const pemType = "PRIVATE KEY"

// ErrRotating is a second rotation before the first is over; ErrNotRotating a finish
// without a beginning; ErrNoOldKey is Forget with nothing to forget; ErrOldKeyInUse is
// Forget while there may be gateways that only the old key has certified.
var (
	ErrRotating    = errors.New("a rotation is under way already")
	ErrNotRotating = errors.New("no rotation is under way")
	ErrNoOldKey    = errors.New("no old key is listed")
	ErrOldKeyInUse = errors.New("gateways that only the old key has certified may still be there")
)

// Dir is an own network as its directory has it.
type Dir struct {
	Path    string // of the directory, as it was given
	Network string
	Key     networkkey.Private
	Next    *networkkey.Private // while the key is rotated
	// Listed is whether the list has Next: before that nobody else knows it.
	Listed bool
	// Lost is a listed key that no file has, and that has not signed as far as the directory
	// tells: that of a NextFile which is gone, or cannot be read.
	Lost *networkkey.Public
	// NextError is why NextFile, which is there, has no key; with its remedy. The key that
	// signs, and the gateways that it certifies, do not need it.
	NextError error
	// Old signed before the present one: gateways that it has certified are to be
	// believed until they were certified anew. Nil: there is none, or it was forgotten.
	Old *networkkey.Public
	// Finished is when the key that Old is ceased to sign; zero without Old.
	Finished time.Time
	// Link is what operators have written at the network in ListFile.
	Link Link
}

// Public returns the keys that other networks have to accept: the one that
// signs first, an old one last.
func (d Dir) Public() []networkkey.Public {
	keys := []networkkey.Public{d.Key.Public()}
	if d.Next != nil {
		keys = append(keys, d.Next.Public())
	}
	for _, p := range []*networkkey.Public{d.Lost, d.Old} {
		if p != nil {
			keys = append(keys, *p)
		}
	}
	return keys
}

// Known returns d in the form of the file of known networks.
func (d Dir) Known() networkkey.Known { return networkkey.Known{d.Network: d.Public()} }

// Init makes a key for network in dir, which it creates with mode 0700. It never
// replaces one: the error then matches fs.ErrExist. A key without a list, as an Init that
// was interrupted leaves it, gets its list.
func Init(dir, network string, random io.Reader) (Dir, error) {
	if err := networkkey.CheckName("network", network); err != nil {
		return Dir{}, err
	}
	key, err := networkkey.Generate(random)
	if err != nil {
		return Dir{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Dir{}, fmt.Errorf("init network: %w", err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return Dir{}, fmt.Errorf("init network: %w", err)
	}
	defer unlock()
	path := filepath.Join(dir, KeyFile)
	begun := exists(path)
	if name := ListFile; exists(filepath.Join(dir, name)) {
		return Dir{}, existsError(dir, name)
	}
	if name := NextFile; !begun && exists(filepath.Join(dir, name)) {
		return Dir{}, existsError(dir, name)
	}
	d := Dir{Path: dir, Network: network, Key: key}
	if begun {
		err = d.readKeys()
	} else {
		err = createKey(path, key)
	}
	if errors.Is(err, fs.ErrExist) { // another one is at it
		return Dir{}, existsError(dir, KeyFile)
	} else if err != nil {
		return Dir{}, fmt.Errorf("init network: %w", err)
	}
	return d, d.writeList()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// readKeys reads what signs, and what will.
func (d *Dir) readKeys() (err error) {
	path := filepath.Join(d.Path, KeyFile)
	if d.Key, err = ReadKey(path); err != nil {
		return err
	}
	path = filepath.Join(d.Path, NextFile)
	switch next, err := ReadKey(path); {
	case err == nil:
		d.Next = &next
	case !errors.Is(err, fs.ErrNotExist):
		d.NextError = fmt.Errorf("the next key cannot be used: %w; restore it if other networks list it, otherwise remove %s and say `isthmus network rotate --dir %s` again", err, path, d.Path)
	}
	return nil
}

func existsError(dir, name string) error {
	return fmt.Errorf("init network: %s: %w: other networks know its key; choose another directory, or replace the key with `isthmus network rotate --dir %s`", filepath.Join(dir, name), fs.ErrExist, dir)
}

// Open reads what Init and Rotate have written.
func Open(dir string) (Dir, error) { return open(dir, "NAME") }

// open calls the network, in the remedy for a directory that is not there, name.
func open(dir, name string) (Dir, error) {
	known, links, err := ReadLinks(filepath.Join(dir, ListFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Dir{}, fmt.Errorf("open network: %w: correct the path; or, if this network has no key yet, make one with `isthmus network init --dir %s --network %s`", err, dir, name)
	}
	if err != nil {
		return Dir{}, fmt.Errorf("open network: %w", err)
	}
	if len(known) != 1 {
		remedy := "restore its entry"
		if len(known) > 1 {
			remedy = "put other networks into a file of their own and name it in federation.networks"
		}
		return Dir{}, fmt.Errorf("open network: %s lists %d networks: want the one whose key %s is: %s", filepath.Join(dir, ListFile), len(known), KeyFile, remedy)
	}
	d := Dir{Path: dir}
	for d.Network, d.Link = range links {
	}
	if err := d.readKeys(); err != nil {
		return Dir{}, fmt.Errorf("open network: %w", err)
	}
	if listed := known[d.Network]; !slices.Contains(listed, d.Key.Public()) {
		var have []string
		for _, p := range listed {
			have = append(have, p.Fingerprint())
		}
		return Dir{}, fmt.Errorf("open network: %s has the key %s (fingerprint %s), which %s does not list (fingerprints %s), so nobody would believe what it certifies: restore the key that belongs to the list, or, if other networks know this one, list it under keys",
			filepath.Join(dir, KeyFile), d.Key.Public(), d.Key.Public().Fingerprint(), filepath.Join(dir, ListFile), strings.Join(have, ", "))
	}
	var other *networkkey.Public
	for _, p := range known[d.Network] {
		switch {
		case p == d.Key.Public():
		case d.Next != nil && p == d.Next.Public():
			d.Listed = true
		default:
			other = &p
		}
	}
	if other == nil {
		return d, nil
	}
	switch d.Finished, err = readFinished(dir); {
	case err == nil:
		d.Old = other
	case errors.Is(err, fs.ErrNotExist): // no key has ceased to sign
		d.Lost = other
	default:
		return Dir{}, fmt.Errorf("open network: %w", err)
	}
	return d, nil
}

// Rotate makes the next key of the network in dir, or lists the one that a Rotate
// before it, which was interrupted, has made. In the list it takes the place of one that was
// lost. The present one goes on signing until Finish.
func Rotate(dir string, random io.Reader) (Dir, error) {
	unlock, err := lock(dir)
	if err != nil {
		return Dir{}, fmt.Errorf("rotate network: %w", err)
	}
	defer unlock()
	d, err := Open(dir)
	if err != nil {
		return Dir{}, err
	}
	if d.NextError != nil {
		return d, fmt.Errorf("rotate network: %w", d.NextError)
	}
	if d.Next != nil && !d.Listed {
		return d.list() // an earlier Rotate came no further
	}
	if d.Old != nil {
		return d, fmt.Errorf("rotate network: %s: %w: the key before the present one is still listed; once all gateways were certified anew, remove it with `isthmus network rotate --dir %s --forget-old`", filepath.Join(dir, ListFile), ErrRotating, dir)
	}
	next, err := networkkey.Generate(random)
	if err == nil { // of an earlier rotation: a lost key is no old one
		err = removeFinished(dir)
	}
	if err != nil {
		return Dir{}, fmt.Errorf("rotate network: %w", err)
	}
	if err := createKey(filepath.Join(dir, NextFile), next); errors.Is(err, fs.ErrExist) {
		return d, fmt.Errorf("rotate network: %s: %w: finish it with `isthmus network rotate --dir %s --finish`", filepath.Join(dir, NextFile), ErrRotating, dir)
	} else if err != nil {
		return Dir{}, fmt.Errorf("rotate network: %w", err)
	}
	d.Next = &next
	return d.list()
}

// list lists the next key, in the place of one that was lost.
func (d Dir) list() (Dir, error) {
	d.Lost, d.Listed = nil, true
	return d, d.writeList()
}

// Finish lets the next key sign and removes the one that did. Its public half stays
// listed until Forget: gateways that it has certified are believed by it, also where the
// list is used in place. It remembers now, from which Forget counts.
func Finish(dir string, now time.Time) (Dir, error) {
	unlock, err := lock(dir)
	if err != nil {
		return Dir{}, fmt.Errorf("finish rotation: %w", err)
	}
	defer unlock()
	d, err := Open(dir)
	if err != nil {
		return Dir{}, err
	}
	if d.NextError != nil {
		return d, fmt.Errorf("finish rotation: %w", d.NextError)
	}
	if !d.Listed {
		return d, fmt.Errorf("finish rotation: %s: %w: begin one with `isthmus network rotate --dir %s`", dir, ErrNotRotating, dir)
	}
	// The time comes first: whatever this is interrupted by, an old key that is listed
	// has the time of its own end beside it, or a later one.
	now = now.UTC().Truncate(time.Second)
	if err := writeFile(filepath.Join(dir, FinishedFile), []byte(now.Format(time.RFC3339)+"\n")); err != nil {
		return Dir{}, fmt.Errorf("finish rotation: %w", err)
	}
	if err := errors.Join(os.Rename(filepath.Join(dir, NextFile), filepath.Join(dir, KeyFile)), syncDir(dir)); err != nil {
		return Dir{}, fmt.Errorf("finish rotation: %w", err)
	}
	old := d.Key.Public()
	d = Dir{Path: dir, Network: d.Network, Key: *d.Next, Old: &old, Finished: now, Link: d.Link}
	return d, d.writeList()
}

// Forget ends the listing of the key that signed before the present one. Before
// ForgetFrom it fails with ErrOldKeyInUse, unless force is set. With force a lost key may
// go, too: it is the old one where FinishedFile was lost.
func Forget(dir string, now time.Time, force bool) (Dir, error) {
	unlock, err := lock(dir)
	if err != nil {
		return Dir{}, fmt.Errorf("forget old key: %w", err)
	}
	defer unlock()
	d, err := Open(dir)
	if err != nil {
		return Dir{}, err
	}
	if d.Old == nil && (d.Lost == nil || !force) {
		return d, fmt.Errorf("forget old key: %s: %w", filepath.Join(dir, ListFile), ErrNoOldKey)
	}
	if from := d.ForgetFrom(); now.Before(from) && !force {
		return d, fmt.Errorf("forget old key: %s: %w, and other networks would not believe them: it signed until %s, so wait until %s, or say --force if all gateways of network %s were restarted since",
			filepath.Join(dir, ListFile), ErrOldKeyInUse, d.Finished.Format(time.RFC3339), from.Format(time.RFC3339), d.Network)
	}
	d.Old, d.Lost, d.Finished = nil, nil, time.Time{}
	if err := d.writeList(); err != nil {
		return d, err
	}
	if err := removeFinished(dir); err != nil {
		return d, fmt.Errorf("forget old key: %w", err)
	}
	return d, nil
}

// ForgetFrom is when the last certificate of the old key has ended; zero without one.
func (d Dir) ForgetFrom() time.Time {
	if d.Old == nil {
		return time.Time{}
	}
	return d.Finished.Add(networkkey.MaxLifetime)
}

// Format returns d as a file of known networks, with its link.
func (d Dir) Format() []byte { return formatLinks(d.Known(), map[string]Link{d.Network: d.Link}) }

// writeList writes the keys of d into its list, and leaves there what else it says.
func (d Dir) writeList() error {
	path := filepath.Join(d.Path, ListFile)
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if b, err = d.edit(b); err != nil {
		b = d.Format()
	}
	return writeFile(path, b)
}

// edit replaces the keys in b, a list that was read before. Comments stay.
func (d Dir) edit(b []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	keys := keysIn(&doc)
	if keys == nil {
		return nil, fmt.Errorf("no keys of network %q", d.Network)
	}
	was := map[string]*yaml.Node{}
	for _, n := range keys.Content {
		was[n.Value] = n
	}
	keys.Content = nil
	for _, p := range d.Public() {
		n, ok := was[p.String()]
		if !ok {
			n = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: p.String()}
		}
		keys.Content = append(keys.Content, n)
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&doc), e.Close()); err != nil {
		return nil, err
	}
	known, links, err := parse(ListFile, out.Bytes())
	if err == nil && (!reflect.DeepEqual(known, d.Known()) || !reflect.DeepEqual(links[d.Network], d.Link)) {
		err = fmt.Errorf("network %q reads otherwise", d.Network)
	}
	return out.Bytes(), err
}

// keysIn is the list of keys of the first network in n; nil: there is none.
func keysIn(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			switch n.Content[i].Value {
			case "networks":
				return keysIn(n.Content[i+1])
			case "keys":
				return n.Content[i+1]
			}
		}
	} else if len(n.Content) > 0 { // a document, a list
		return keysIn(n.Content[0])
	}
	return nil
}

// writeFile replaces a file that everybody may read, whole or not at all. A link stays one:
// what it leads to is replaced.
func writeFile(path string, content []byte) error {
	switch target, err := filepath.EvalSymlinks(path); {
	case err == nil:
		path = target
	case !errors.Is(err, fs.ErrNotExist) || exists(path):
		return fmt.Errorf("write %s: %w", path, err)
	}
	tmp, err := writeTemp(path, content, 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	} else if tmp != "" {
		err = errors.Join(err, os.Remove(tmp))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// writeTemp writes a file beside path and returns its name, if it is there.
func writeTemp(path string, content []byte, mode fs.FileMode) (string, error) {
	f, err := tempfile.Create(path)
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	return f.Name(), errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// syncDir makes the names in dir outlast a loss of power.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) { // not every file system can
		err = nil
	}
	return errors.Join(err, d.Close())
}

// createKey writes a file of mode 0600 that was not there, whole or not at all: a gateway
// that starts meanwhile reads no part of a key, and nor does one after a crash.
func createKey(path string, key networkkey.Private) error {
	der, err := x509.MarshalPKCS8PrivateKey(key.Ed25519())
	if err != nil {
		return fmt.Errorf("encode network key: %w", err)
	}
	if exists(path) { // also where a name cannot be linked
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	tmp, err := writeTemp(path, pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}), 0o600)
	if tmp == "" {
		return err
	}
	if err == nil {
		// Unlike a rename, a link replaces nothing that has appeared since. Some file
		// systems have none.
		if err = os.Link(tmp, path); err != nil && !errors.Is(err, fs.ErrExist) && !exists(path) {
			err = os.Rename(tmp, path)
		}
	}
	if rest := os.Remove(tmp); rest != nil && !errors.Is(rest, fs.ErrNotExist) {
		err = errors.Join(err, rest)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// ReadKey reads a network's secret key from a PEM file, as [secretfile.Read] does.
func ReadKey(path string) (networkkey.Private, error) {
	b, err := secretfile.Read(path)
	if err != nil {
		return networkkey.Private{}, err
	}
	block, rest := pem.Decode(b)
	if len(b) == 0 { // an earlier version was interrupted
		return networkkey.Private{}, fmt.Errorf("%s is empty: no key was ever in use that stood there: remove it", path)
	}
	if block == nil || block.Type != pemType || len(rest) > 0 {
		return networkkey.Private{}, fmt.Errorf("%s: want exactly one PEM block %q, as `isthmus network init` writes it", path, pemType)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return networkkey.Private{}, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return networkkey.Private{}, fmt.Errorf("%s: holds a %T: a network key is Ed25519; make one with `isthmus network init`", path, parsed)
	}
	return networkkey.FromEd25519(key), nil
}
