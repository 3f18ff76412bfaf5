package pods

import (
	"fmt"
	"time"
)

const (
	// readPatience is how long entering a pod waits for a file of it, which may be on a file system that the pod itself
	// serves (FUSE).
	readPatience = 250 * time.Millisecond
	// maxStuck bounds the reads that wait without anybody waiting for them, a thread of this process each.
	maxStuck = 32
)

// readFile reads a file of a pod. A read that does not come back keeps a thread until it does; until then that pod is
// not read from again, so that it costs others no more than readPatience.
func (c *Set) readFile(uid, path string, read func(path string) ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	if _, stuck := c.reading[uid]; stuck || len(c.reading) >= maxStuck+workAtOnce {
		c.mu.Unlock()
		if stuck {
			return nil, fmt.Errorf("its %s does not come: an earlier read of it has not ended, see what file system it is on", path)
		}
		return nil, fmt.Errorf("its %s is not read: %d reads in other pods do not end, see what file systems they have", path, maxStuck)
	}
	if c.reading == nil {
		c.reading = map[string]struct{}{}
	}
	c.reading[uid] = struct{}{}
	c.mu.Unlock()
	type answer struct {
		text []byte
		err  error
	}
	come := make(chan answer, 1)
	go func() { // ends with the read, which ends at the latest with the pod
		text, err := read(path)
		c.mu.Lock()
		delete(c.reading, uid)
		c.mu.Unlock()
		come <- answer{text, err}
	}()
	select {
	case a := <-come:
		return a.text, a.err
	case <-time.After(readPatience):
		return nil, fmt.Errorf("its %s has not come within %v: see what file system it is on; it is captured when that answers", path, readPatience)
	}
}
