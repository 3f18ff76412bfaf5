package boundtoken

import (
	"crypto/sha256"
	"sync"
	"time"
)

// cache remembers what was found of tokens, by their hashes: never a token itself. The
// zero cache is empty; safe for concurrent use.
type cache struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]entry
}

// entry is what was found of one token.
type entry struct {
	holder  Holder
	refusal *Refusal  // instead
	until   time.Time // when it is asked anew
}

// maxEntries bounds the cache; an entry has about 500 bytes.
const maxEntries = 20_000

// get returns what is remembered of k at now.
func (c *cache) get(k [sha256.Size]byte, now time.Time) (entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[k]
	if ok && e.over(now) {
		delete(c.entries, k)
	}
	if !ok || !now.Before(e.until) {
		return entry{}, false
	}
	return e, true
}

// over reports whether e is of no use any more at now: an accepted token is remembered as
// such until it expires.
func (e entry) over(now time.Time) bool {
	return !now.Before(e.until) && (e.refusal != nil || !now.Before(e.holder.Expires))
}

// accepted reports whether k was accepted before, and may be so again.
func (c *cache) accepted(k [sha256.Size]byte, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[k]
	return ok && e.refusal == nil && now.Before(e.holder.Expires)
}

// put remembers e of k. Where there is no room any entry gives way: it costs a question.
func (c *cache) put(k [sha256.Size]byte, e entry, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[[sha256.Size]byte]entry{}
	}
	if _, there := c.entries[k]; !there && len(c.entries) >= maxEntries {
		looked := 0
		for old, x := range c.entries {
			if looked++; x.over(now) || looked > 64 {
				delete(c.entries, old)
				break
			}
		}
		if len(c.entries) >= maxEntries {
			for old := range c.entries {
				delete(c.entries, old)
				break
			}
		}
	}
	c.entries[k] = e
}

// drop forgets k.
func (c *cache) drop(k [sha256.Size]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, k)
}

// sweep forgets what is over.
func (c *cache) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, e := range c.entries {
		if e.over(now) {
			delete(c.entries, k)
		}
	}
}
