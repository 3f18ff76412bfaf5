//go:build linux

package cniinstall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/tempfile"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

// Node is where things are on a node.
type Node struct {
	Executable string // that is installed
	BinDir     string // of CNI plugins
	ConfDir    string // of network configurations
	Plugin     cniplugin.Config
	Log        zerolog.Logger
}

const (
	// lookEvery is how often it is looked whether somebody has written another configuration.
	lookEvery = time.Second
	// maxConf bounds a network configuration: those that there are have some kilobytes.
	maxConf = 1 << 20
	// saved is behind the name of a configuration of a single plugin, of which a list was made.
	saved = ".isthmus-saved"
)

// Run keeps the plugin installed, until ctx ends. What was installed stays: the next process may be there already.
func (n *Node) Run(ctx context.Context) error {
	return n.keep(ctx, func() error {
		if err := n.putBinary(); err != nil { // first: the runtime may call it as soon as it is configured
			return err
		}
		return n.configure()
	})
}

// Remove keeps the plugin out of the configuration of the network, until ctx ends.
func (n *Node) Remove(ctx context.Context) error { return n.keep(ctx, n.unconfigure) }

// keep does it again and again. What goes wrong is said when it is news.
func (n *Node) keep(ctx context.Context, do func() error) error {
	last := ""
	for {
		now := ""
		if err := do(); err != nil {
			now = err.Error()
		}
		if now != last {
			if now != "" {
				n.Log.Error().Str("error", now).Msg("the CNI plugin is not as it should be on this node")
			} else {
				n.Log.Info().Msg("the CNI plugin is as it should be on this node")
			}
		}
		last = now
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookEvery):
		}
	}
}

// putBinary copies the executable, unless it is there.
func (n *Node) putBinary() error {
	to := filepath.Join(n.BinDir, cniplugin.Type)
	same, err := sameFile(n.Executable, to)
	if err != nil || same {
		return err
	}
	from, err := os.Open(n.Executable)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := replace(to, 0o755, func(f *os.File) error { _, err := io.Copy(f, from); return err }); err != nil {
		return fmt.Errorf("--bin-dir %s: %w: mount the directory of the node's CNI plugins there, for root to write, or name where it is", n.BinDir, err)
	}
	n.Log.Info().Str("file", to).Msg("installed")
	return nil
}

// sameFile reports whether both have the same content; the second need not be there.
func sameFile(a, b string) (bool, error) {
	x, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := os.Open(b)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer y.Close()
	sx, err := x.Stat()
	if err != nil {
		return false, err
	}
	sy, err := y.Stat()
	if err != nil || sx.Size() != sy.Size() || sy.Mode().Perm() != 0o755 {
		return false, err
	}
	p, q := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		i, errX := io.ReadFull(x, p)
		j, errY := io.ReadFull(y, q)
		if !bytes.Equal(p[:i], q[:j]) {
			return false, nil
		}
		if errX != nil || errY != nil {
			return errors.Is(errX, io.EOF) || errors.Is(errX, io.ErrUnexpectedEOF), nil
		}
	}
}

// replace writes a file beside path and gives it its name.
func replace(path string, mode fs.FileMode, write func(*os.File) error) error {
	f, err := tempfile.Create(path)
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func (n *Node) readConfDir() ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(n.ConfDir)
	if err != nil {
		return nil, fmt.Errorf("--conf-dir %s: %w: mount the directory of the node's network configurations there, or name where it is", n.ConfDir, err)
	}
	return entries, nil
}

// configurations are the names of network configurations, in the order in which runtimes look for the first.
func (n *Node) configurations() (out []string, err error) {
	entries, err := n.readConfDir()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// configure has the first configuration call the plugin, and no other.
func (n *Node) configure() error {
	names, err := n.configurations()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has no network configuration (.conflist, .conf or .json) yet: the plugin is put behind what the node's CNI writes there", n.ConfDir)
	}
	plugin := n.Plugin
	plugin.Type, plugin.Capabilities = cniplugin.Type, map[string]bool{"dns": true}
	entry, err := json.Marshal(plugin)
	if err != nil {
		return err
	}
	var broken []error // passed over; one that is just being written is looked at again soon
	first := 0
	for ; first < len(names); first++ {
		err = n.edit(names[first], func(l *list) bool { return l.with(entry) })
		if errors.Is(err, errNoList) {
			err = n.convert(names[first], entry)
		}
		if !errors.Is(err, errBroken) {
			break
		}
		broken = append(broken, err)
	}
	if first == len(names) {
		return errors.Join(broken...)
	}
	if err != nil {
		return errors.Join(append(broken, err)...)
	}
	for _, name := range names[first+1:] {
		if name == listOf(names[first]) { // it was just made
			continue
		}
		if err := n.edit(name, (*list).without); err != nil && !errors.Is(err, errNoList) {
			n.Log.Debug().Str("file", name).Err(err).Msg("not read")
		}
	}
	return errors.Join(broken...)
}

// edit changes a list; change reports whether it has.
func (n *Node) edit(name string, change func(*list) bool) error {
	path := filepath.Join(n.ConfDir, name)
	text, mode, err := read(path)
	if err != nil {
		return err
	}
	l, err := parseList(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if !change(l) {
		return nil
	}
	return n.write(path, mode, l)
}

func (n *Node) write(path string, mode fs.FileMode, l *list) error {
	text, err := l.text()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := replace(path, mode, func(f *os.File) error { _, err := f.Write(text); return err }); err != nil {
		return err
	}
	n.Log.Info().Str("file", path).Bool("plugin", l.at() >= 0).Msg("network configuration written")
	return nil
}

// convert makes a list of the configuration of a single plugin, which keeps its content under another name.
func (n *Node) convert(name string, entry json.RawMessage) error {
	path := filepath.Join(n.ConfDir, name)
	text, mode, err := read(path)
	if err != nil {
		return err
	}
	l, err := asList(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	ours, err := made(path, text)
	if was, _, missing := read(path + saved); err == nil && !ours && missing == nil { // the single plugin has been written anew
		ours, err = made(path, was)
	}
	switch {
	case err == nil && !ours:
		return fmt.Errorf("%s: %s is there as well, and another one: delete the one of the two that is not used", path, listOf(path))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	l.with(entry)
	if err := n.write(listOf(path), mode, l); err != nil { // before the other one goes, which comes first as long as it is there
		return err
	}
	return os.Rename(path, path+saved)
}

// made reports whether the list beside path is the one that was made of text, which is or was there.
func made(path string, text []byte) (bool, error) {
	there, _, err := read(listOf(path))
	if err != nil {
		return false, err
	}
	l, err := parseList(there)
	if err != nil {
		return false, nil // somebody else's
	}
	l.without()
	own, err := asList(text)
	if err != nil {
		return false, err
	}
	a, errA := l.text()
	b, errB := own.text()
	return sameJSON(a, b), errors.Join(errA, errB)
}

// listOf is what the list is called that is made of a configuration.
func listOf(path string) string { return strings.TrimSuffix(path, filepath.Ext(path)) + ".conflist" }

// unconfigure has no configuration call the plugin.
func (n *Node) unconfigure() error {
	entries, err := n.readConfDir()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name, was := strings.CutSuffix(e.Name(), saved)
		if !was {
			continue
		}
		path := filepath.Join(n.ConfDir, name)
		if _, err := os.Stat(path); err == nil { // somebody has written it anew since
			errs = append(errs, os.Remove(path+saved))
			continue
		}
		text, _, err := read(path + saved)
		ours := false
		if err == nil {
			ours, err = made(path, text)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // the list is gone
			errs = append(errs, os.Rename(path+saved, path))
		case err != nil:
			errs = append(errs, err)
		case !ours: // somebody has written the list anew since
			errs = append(errs, os.Remove(path+saved))
		default:
			if err := os.Rename(path+saved, path); err != nil {
				errs = append(errs, err)
				continue
			}
			errs = append(errs, os.Remove(listOf(path)))
		}
	}
	names, err := n.configurations()
	errs = append(errs, err)
	for _, name := range names {
		if err := n.edit(name, (*list).without); err != nil && !errors.Is(err, errNoList) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// read reads a configuration.
func read(path string) ([]byte, fs.FileMode, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxConf+1))
	if err == nil && len(b) > maxConf {
		err = fmt.Errorf("%s is longer than %d bytes: it is no network configuration", path, maxConf)
	}
	return b, st.Mode().Perm(), err
}
