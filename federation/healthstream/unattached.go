package healthstream

import (
	"cmp"
	"slices"
	"time"
)

// Unattached is a gateway that a client has tried to attach to, and has no stream to.
type Unattached struct {
	Gateway string
	Since   time.Time // when the last stream ended, or the first attempt began
	Err     error     // of the last attempt, or what ended the stream
}

// Unattached returns the gateways that no stream is up to although one was tried, by name.
func (c *Client) Unattached() []Unattached {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Unattached, 0, len(c.missed))
	for _, u := range c.missed {
		list = append(list, u)
	}
	slices.SortFunc(list, func(a, b Unattached) int {
		return cmp.Or(cmp.Compare(a.Gateway, b.Gateway), a.Since.Compare(b.Since))
	})
	return list
}

// missing notes that there is no stream to g, and why; without err, that there is one, or
// is to be none.
func (c *Client) missing(g gatewayKey, err error, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.missed, g)
		return
	}
	c.missed[g] = Unattached{Gateway: g.name, Since: since, Err: err}
}
