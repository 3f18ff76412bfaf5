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
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
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
	if d.Old != nil {
		keys = append(keys, *d.Old)
	}
	return keys
}

// Known returns d in the form of the file of known networks.
func (d Dir) Known() networkkey.Known { return networkkey.Known{d.Network: d.Public()} }

// Init makes a key for network in dir, which it creates with mode 0700. It never
// replaces one: the error then matches fs.ErrExist.
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
	for _, name := range []string{ListFile, NextFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return Dir{}, existsError(dir, name)
		}
	}
	path := filepath.Join(dir, KeyFile)
	if err := createKey(path, key); errors.Is(err, fs.ErrExist) {
		return Dir{}, existsError(dir, KeyFile)
	} else if err != nil {
		return Dir{}, fmt.Errorf("init network: %w", err)
	}
	d := Dir{Path: dir, Network: network, Key: key}
	return d, d.writeList()
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
		return Dir{}, fmt.Errorf("open network: %w: make one with `isthmus network init --dir %s --network %s`", err, dir, name)
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
	if d.Key, err = ReadKey(filepath.Join(dir, KeyFile)); err != nil {
		return Dir{}, fmt.Errorf("open network: %w", err)
	}
	switch next, err := ReadKey(filepath.Join(dir, NextFile)); {
	case err == nil:
		d.Next = &next
	case !errors.Is(err, fs.ErrNotExist):
		return Dir{}, fmt.Errorf("open network: %w", err)
	}
	for _, p := range known[d.Network] {
		if p != d.Key.Public() && (d.Next == nil || p != d.Next.Public()) {
			d.Old = &p
		}
	}
	if d.Old != nil {
		if d.Finished, err = readFinished(dir); err != nil {
			return Dir{}, fmt.Errorf("open network: %w", err)
		}
	}
	return d, nil
}

// Rotate makes the next key of the network in dir. The present one goes on
// signing until Finish.
func Rotate(dir string, random io.Reader) (Dir, error) {
	d, err := Open(dir)
	if err != nil {
		return Dir{}, err
	}
	if d.Old != nil {
		return d, fmt.Errorf("rotate network: %s: %w: the key before the present one is still listed; once all gateways were certified anew, remove it with `isthmus network rotate --dir %s --forget-old`", filepath.Join(dir, ListFile), ErrRotating, dir)
	}
	next, err := networkkey.Generate(random)
	if err != nil {
		return Dir{}, err
	}
	if err := createKey(filepath.Join(dir, NextFile), next); errors.Is(err, fs.ErrExist) {
		return d, fmt.Errorf("rotate network: %s: %w: finish it with `isthmus network rotate --dir %s --finish`", filepath.Join(dir, NextFile), ErrRotating, dir)
	} else if err != nil {
		return Dir{}, fmt.Errorf("rotate network: %w", err)
	}
	d.Next = &next
	return d, d.writeList()
}

// Finish lets the next key sign and removes the one that did. Its public half stays
// listed until Forget: gateways that it has certified are believed by it, also where the
// list is used in place. It remembers now, from which Forget counts.
func Finish(dir string, now time.Time) (Dir, error) {
	d, err := Open(dir)
	if err != nil {
		return Dir{}, err
	}
	if d.Next == nil {
		return d, fmt.Errorf("finish rotation: %s: %w: begin one with `isthmus network rotate --dir %s`", dir, ErrNotRotating, dir)
	}
	// The time comes first: whatever this is interrupted by, an old key that is listed
	// has the time of its own end beside it, or a later one.
	now = now.UTC().Truncate(time.Second)
	if err := writeFile(filepath.Join(dir, FinishedFile), []byte(now.Format(time.RFC3339)+"\n")); err != nil {
		return Dir{}, fmt.Errorf("finish rotation: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, NextFile), filepath.Join(dir, KeyFile)); err != nil {
		return Dir{}, fmt.Errorf("finish rotation: %w", err)
	}
	old := d.Key.Public()
	d = Dir{Path: dir, Network: d.Network, Key: *d.Next, Old: &old, Finished: now, Link: d.Link}
	return d, d.writeList()
}

// Forget ends the listing of the key that signed before the present one. Before
// ForgetFrom it fails with ErrOldKeyInUse, unless force is set.
func Forget(dir string, now time.Time, force bool) (Dir, error) {
	d, err := Open(dir)
	if err != nil {
		return Dir{}, err
	}
	if d.Old == nil {
		return d, fmt.Errorf("forget old key: %s: %w", filepath.Join(dir, ListFile), ErrNoOldKey)
	}
	if from := d.ForgetFrom(); now.Before(from) && !force {
		return d, fmt.Errorf("forget old key: %s: %w, and other networks would not believe them: it signed until %s, so wait until %s, or say --force if all gateways of network %s were restarted since",
			filepath.Join(dir, ListFile), ErrOldKeyInUse, d.Finished.Format(time.RFC3339), from.Format(time.RFC3339), d.Network)
	}
	d.Old, d.Finished = nil, time.Time{}
	if err := d.writeList(); err != nil {
		return d, err
	}
	if err := os.Remove(filepath.Join(dir, FinishedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// readFinished returns when the last rotation in dir was finished. A directory that
// has no word of it was written before there was one: Finish wrote the list last.
func readFinished(dir string) (time.Time, error) {
	path := filepath.Join(dir, FinishedFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		i, err := os.Stat(filepath.Join(dir, ListFile))
		if err != nil {
			return time.Time{}, err
		}
		return i.ModTime().UTC().Truncate(time.Second), nil
	}
	if err != nil {
		return time.Time{}, err
	}
	t, err := time.Parse(time.RFC3339, strings.TrimSpace(string(b)))
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %.80q: want the time of the last `isthmus network rotate --finish`, as 2006-01-02T15:04:05Z", path, b)
	}
	return t.UTC(), nil
}

// Format returns d as a file of known networks, with its link.
func (d Dir) Format() []byte { return d.Link.append(FormatKnown(d.Known())) }

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

// writeFile replaces a file that everybody may read, whole or not at all.
func writeFile(path string, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

// createKey writes a file of mode 0600 that was not there; a part of a key is
// never left behind.
func createKey(path string, key networkkey.Private) error {
	der, err := x509.MarshalPKCS8PrivateKey(key.Ed25519())
	if err != nil {
		return fmt.Errorf("encode network key: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = pem.Encode(f, &pem.Block{Type: pemType, Bytes: der})
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// ReadKey reads a network's secret key from a PEM file.
func ReadKey(path string) (networkkey.Private, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return networkkey.Private{}, err
	}
	block, rest := pem.Decode(b)
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
