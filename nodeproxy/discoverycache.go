package nodeproxy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/internal/tempfile"
)

// discoveryCache is the file in which a node proxy keeps what gateways told last, for a
// start without them. Safe for concurrent use; without a path it does nothing.
type discoveryCache struct {
	path string
	log  zerolog.Logger

	version uint64    // of what was written; of one goroutine
	tried   time.Time // likewise
	failed  bool      // likewise: the last write

	mu      sync.Mutex
	written time.Time
	err     error // of the last attempt to write it, or to read it at the start
}

// cacheEvery is the pause between two writes: what is lost of it by a crash the gateways
// tell anew, or is as old as what the next process holds anyway.
const cacheEvery = time.Minute

// cacheAgain is the pause before what has not changed is written again, so that its age is
// not that of its last change.
const cacheAgain = time.Hour

// cacheState is how it stands with that file.
type cacheState struct {
	Path      string    `json:"path,omitempty"`      // path of the file
	Written   time.Time `json:"written,omitzero"`    // last write by this process
	LastError string    `json:"lastError,omitempty"` // why it cannot be written, or was not used at the start; empty once solved
}

func (c *discoveryCache) state() cacheState {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := cacheState{Path: c.path, Written: c.written}
	if c.err != nil {
		s.LastError = c.err.Error()
	}
	return s
}

// note keeps the outcome of an attempt, and logs one that is new.
func (c *discoveryCache) note(doing string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && (c.err == nil || c.err.Error() != err.Error()) {
		c.log.Warn().Err(err).Str("field", "discovery.cache").Str("file", c.path).Msg(doing)
	}
	c.err = err
}

// keep writes what k holds, if that is news and the last write is long enough ago, or
// anyway.
func (c *discoveryCache) keep(k *excerpt.Keeper, now time.Time, anyway bool) {
	if c.path == "" || !anyway && now.Sub(c.tried) < cacheEvery {
		return
	}
	data, version, err := k.Save(c.version, anyway || c.failed || now.Sub(c.tried) >= cacheAgain)
	if data == nil && err == nil {
		return
	}
	c.tried = now
	if err == nil {
		err = replaceFile(c.path, data)
	}
	c.failed = err != nil
	if c.note("cache of discovery not written", err); err == nil {
		c.version = version
		c.mu.Lock()
		c.written = now
		c.mu.Unlock()
	}
}

// policies takes the policies that the file has into k, before gateways tell.
func (c *discoveryCache) policies(k *excerpt.Keeper) {
	if c.path == "" {
		return
	}
	if data, err := readAtMost(c.path, excerpt.MaxSaved); err == nil {
		k.RestorePolicies(data)
	}
}

// restore takes what the file has into k. ask is told which names were asked for.
func (c *discoveryCache) restore(k *excerpt.Keeper, ask func([]string)) {
	if c.path == "" {
		return
	}
	data, err := readAtMost(c.path, excerpt.MaxSaved)
	if errors.Is(err, os.ErrNotExist) {
		return // a first start
	}
	var at time.Time
	if err == nil {
		at, err = k.Restore(data, ask)
	}
	if c.note("cache of discovery is not used", err); err == nil && !at.IsZero() {
		c.log.Warn().Str("file", c.path).Dur("age_ms", time.Since(at)).Msg("no gateway tells of discovery: starting from the cache")
	}
}

func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("read %s: more than %d bytes", path, most)
	}
	return data, err
}

// replaceFile writes a file in one step: a reader has the whole of the old or of the new
// one, also after a crash.
func replaceFile(path string, data []byte) (err error) {
	f, err := tempfile.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
