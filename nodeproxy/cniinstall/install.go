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
	Once       bool // Run and Remove do it once, and return what went wrong
	Log        zerolog.Logger
}

const (
	// lookEvery is how often it is looked whether somebody has written another configuration.
	lookEvery = time.Second
	// saved is behind the name of a configuration of a single plugin, of which a list was made.
	saved = ".isthmus-saved"
)

// Run keeps the plugin installed, until ctx ends, unless it is to be done once. What was installed stays: the next process may be there already.
func (n *Node) Run(ctx context.Context) error {
	return n.keep(ctx, func() error {
		if err := n.putBinary(); err != nil { // first: the runtime may call it as soon as it is configured
			return err
		}
		return n.locked(n.configure)
	})
}

// Remove keeps the plugin out of the configuration of the network, until ctx ends, unless it is to be done once.
func (n *Node) Remove(ctx context.Context) error {
	return n.keep(ctx, func() error { return n.locked(n.unconfigure) })
}

// locked does it while nobody else of ours is at work in the directory of network configurations, and without what processes
// have left there that were killed.
func (n *Node) locked(do func() error) error {
	if _, err := n.readConfDir(); err != nil {
		return err
	}
	return locked(n.ConfDir, func() error { return errors.Join(n.clear(), do()) })
}

// clear looks also where links lead.
func (n *Node) clear() error {
	names, err := n.configurations()
	dirs := []string{n.ConfDir}
	for _, name := range names {
		if path, link, err := n.file(name); err == nil && link && !slices.Contains(dirs, filepath.Dir(path)) {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, dir := range dirs {
		err = errors.Join(err, clear(dir))
	}
	return err
}

// keep does it again and again. What goes wrong is said when it is news.
func (n *Node) keep(ctx context.Context, do func() error) error {
	if n.Once {
		return do()
	}
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
		return fmt.Errorf("--bin-dir %s: %w: mount the directory of the node's CNI plugins there, for root to write, or name where it is", n.BinDir, cause(err))
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
	y, err := openFile(b)
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

// cause is an error without the name of a file that is another one each time: what is said again is not news.
func cause(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return fmt.Errorf("%s: %w", path.Op, path.Err)
	case errors.As(err, &link):
		return fmt.Errorf("%s: %w", link.Op, link.Err)
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

// file is the path of a configuration, and whether it is that to which a link leads. From here a link out of the directory may
// lead elsewhere than on the node, of which that directory alone is mounted.
func (n *Node) file(name string) (path string, link bool, err error) {
	path = filepath.Join(n.ConfDir, name)
	st, err := os.Lstat(path)
	if err != nil {
		return "", false, err
	}
	if link = st.Mode().Type() == fs.ModeSymlink; !link {
		return path, false, nil
	}
	to, err := os.Readlink(path)
	if err != nil {
		return "", false, err
	}
	dir, err := filepath.EvalSymlinks(n.ConfDir)
	if err != nil {
		return "", false, err
	}
	target, err := filepath.EvalSymlinks(path)
	if err == nil && !strings.HasPrefix(target, dir+"/") {
		err = fmt.Errorf("that is not in %s", n.ConfDir)
	}
	if err != nil {
		return "", false, fmt.Errorf("%s is a symbolic link to %s, which is not followed (%w): put the file itself there, or a link to one in the same directory, by a relative path", path, to, err)
	}
	return target, true, nil
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
		err = n.edit(names[first], func(l *list) (bool, error) {
			if filepath.Ext(names[first]) != ".conflist" {
				return false, fmt.Errorf("a list of plugins has a name that ends in .conflist: %w", errUnused)
			}
			if err := l.fits(); err != nil {
				return false, err
			}
			return l.with(entry), nil
		})
		if errors.Is(err, errNoList) && filepath.Ext(names[first]) == ".conflist" {
			err = fmt.Errorf("%s has no plugins: write them, as in \"plugins\": [{\"type\": …}], or give the configuration of a single plugin a name that ends in .conf", filepath.Join(n.ConfDir, names[first]))
		} else if errors.Is(err, errNoList) {
			err = n.convert(names[first], entry)
		}
		if !errors.Is(err, errUnused) {
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
	used, _, _ := n.file(names[first]) // it is not there if a list was made of it
	for _, name := range names[first+1:] {
		if name == listOf(names[first]) { // it was just made
			continue
		}
		if path, _, err := n.file(name); err == nil && path == used { // one of the two is a link
			continue
		}
		if err := n.edit(name, withoutEntry); err != nil && !errors.Is(err, errNoList) {
			n.Log.Debug().Str("file", name).Err(err).Msg("not read")
		}
	}
	return errors.Join(broken...)
}

func withoutEntry(l *list) (bool, error) { return l.without(), nil }

// edit changes a list; change reports whether it has.
func (n *Node) edit(name string, change func(*list) (bool, error)) error {
	path, _, err := n.file(name)
	if err != nil {
		return err
	}
	return retried(path, func() error {
		c, err := open(path)
		if err != nil {
			return err
		}
		defer c.close()
		l, err := parseList(c.text)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if changed, err := change(l); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		} else if !changed {
			return nil
		}
		return n.write(path, l, c.replace)
	})
}

// write writes a list as put does it.
func (n *Node) write(path string, l *list, put func(text []byte) error) error {
	if err := put(l.text); err != nil {
		return err
	}
	if len(l.ours()) > 0 {
		n.Log.Info().Str("file", path).Msg("plugin put into the network configuration")
	} else {
		n.Log.Info().Str("file", path).Msg("plugin taken out of the network configuration")
	}
	return nil
}

// convert makes a list of the configuration of a single plugin, which keeps its content under another name.
func (n *Node) convert(name string, entry json.RawMessage) error {
	path := filepath.Join(n.ConfDir, name)
	if to, link, err := n.file(name); err != nil {
		return err
	} else if link {
		return fmt.Errorf("%s is a symbolic link to %s, a configuration of a single plugin, of which no list is made: write one (.conflist, with \"plugins\": [{\"type\": …}]), or put the file itself there", path, to)
	}
	return retried(path, func() error {
		c, err := open(path)
		if err != nil {
			return err
		}
		defer c.close()
		l, err := asList(c.text)
		if err == nil {
			err = l.fits()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		l.with(entry)
		old, err := open(listOf(path))
		if errors.Is(err, fs.ErrNotExist) {
			// The list goes before the other one, which comes first as long as it is there, and what tells that it is ours goes before the list.
			if err := c.save(); err != nil {
				return err
			}
			if err := n.write(listOf(path), l, func(text []byte) error { return c.create(listOf(path), text) }); err != nil {
				return err
			}
			return c.remove()
		}
		if err != nil {
			return err
		}
		defer old.close()
		ours, err := made(old.text, c.text)
		if was, errWas := os.ReadFile(path + saved); err == nil && !ours && errWas == nil { // the single plugin has been written anew
			ours, err = made(old.text, was)
		}
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", path, err)
		case !ours:
			return fmt.Errorf("%s: %s is there as well, and another one: delete the one of the two that is not used", path, listOf(path))
		}
		if err := n.write(listOf(path), l, old.replace); err != nil {
			return err
		}
		if err := c.save(); err != nil {
			return err
		}
		return c.remove()
	})
}

// save keeps the content under another name: by that it is known of which configuration a list was made.
func (c *conf) save() error {
	temp, err := c.beside(c.path+saved, c.text)
	if err != nil {
		return err
	}
	return os.Rename(temp, c.path+saved)
}

// made reports whether a list is the one that was made of the configuration of a single plugin.
func made(there, single []byte) (bool, error) {
	l, err := parseList(there)
	if err != nil {
		return false, nil // somebody else's
	}
	l.without()
	own, err := asList(single)
	if err != nil {
		return false, err
	}
	return sameJSON(l.text, own.text), nil
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
		back, err := restore(path)
		switch {
		case err != nil:
			errs = append(errs, err)
		case back:
			n.Log.Info().Str("file", path).Msg("network configuration of a single plugin put back, as it was before the list made of it")
		default:
			n.Log.Info().Str("file", path+saved).Msg("saved network configuration removed, as another has been written since")
		}
	}
	names, err := n.configurations()
	errs = append(errs, err)
	for _, name := range names {
		if err := n.edit(name, withoutEntry); err != nil && !errors.Is(err, errNoList) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// restore puts the configuration of a single plugin back of which a list was made, unless somebody has written the one or the
// other anew since, and reports whether it has. Who is killed in between can do it again: what was saved goes last.
func restore(path string) (back bool, err error) {
	c, err := open(path + saved)
	if err != nil {
		return false, err
	}
	defer c.close()
	list, err := open(listOf(path))
	if errors.Is(err, fs.ErrNotExist) { // somebody has deleted the list
		_, there := os.Lstat(path)
		return errors.Is(there, fs.ErrNotExist), putBack(path+saved, path)
	}
	if err != nil {
		return false, err
	}
	defer list.close()
	if ours, err := made(list.text, c.text); err != nil {
		return false, err
	} else if !ours {
		return false, os.Remove(path + saved)
	}
	err = c.create(path, c.text) // before the list goes: a node without any configuration starts no pods
	written := errors.Is(err, errChanged)
	if err != nil && !written {
		return false, err
	}
	back = !written
	err = list.remove()
	if errors.Is(err, errChanged) && !written { // the list is somebody else's by now, and what is back would come before it
		var put *conf
		if put, err = open(path); err == nil {
			defer put.close()
			if bytes.Equal(put.text, c.text) {
				err = put.remove()
			}
		}
		back = false
	}
	if err != nil && !errors.Is(err, errChanged) && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return back, os.Remove(path + saved)
}
