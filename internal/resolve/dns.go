package resolve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// DNS asks the servers of a resolv.conf for A and AAAA records, by the search domains that
// it names. It reads the file for each question: it is small, and may change. net.Resolver
// does not say how long an answer holds.
func DNS(path string) Lookup {
	return func(ctx context.Context, host string) ([]netip.Addr, time.Duration, error) {
		c, err := dns.ClientConfigFromFile(path)
		if err != nil {
			return nil, 0, fmt.Errorf("resolve %s: %w", host, err)
		}
		if len(c.Servers) == 0 {
			return nil, 0, fmt.Errorf("resolve %s: %s names no server", host, path)
		}
		return inDomains(ctx, c, host)
	}
}

// question is how long one server has for its answer; resolv.conf may give it less.
const question = time.Second

// maxAttempts is how often all servers are asked at most, whatever resolv.conf says.
const maxAttempts = 3

// errRefused is a server that answers, and not for that name: SERVFAIL, REFUSED and the like.
// Another server, or another domain, may.
var errRefused = errors.New("the server does not answer for the name")

// inDomains asks for host itself and in each search domain, until it is found, as resolv.conf(5)
// and glibc have it: a name that does not exist, has no addresses or that no server answers for (a
// search domain of somebody else's) is followed by the next one. When no server says anything of one,
// as for a domain that is forwarded to where nobody is, the other search domains are left, and host
// itself is asked for if it has a dot: each such name costs all the time that there is for one.
func inDomains(ctx context.Context, c *dns.ClientConfig, host string) ([]netip.Addr, time.Duration, error) {
	why := ErrNotFound
	a := &asker{config: c}
	absolute := dns.Fqdn(host)
	silent := false
	for _, full := range c.NameList(host) {
		if silent && full != absolute {
			continue
		}
		found, ttl, err := a.both(ctx, full)
		switch {
		case len(found) > 0:
			return found, ttl, nil
		case err == nil || errors.Is(err, ErrNotFound):
		case errors.Is(err, errRefused):
			if !silent {
				why = err
			}
		case full == absolute || dns.CountLabel(absolute) < 2:
			return nil, 0, fmt.Errorf("resolve %s: %w", host, err)
		default:
			why, silent = err, true
		}
	}
	return nil, 0, fmt.Errorf("resolve %s: %w", host, why)
}

// asker asks the servers of a configuration, the one that has answered last first: one that is
// gone costs its time once for all names of a search.
type asker struct {
	config *dns.ClientConfig
	first  atomic.Int64 // of config.Servers
}

// answer is that of one question.
type answer struct {
	addresses []netip.Addr
	ttl       time.Duration
	err       error
}

// both asks for both families at once. One that fails while the other one has addresses
// is as if it had none.
func (k *asker) both(ctx context.Context, full string) ([]netip.Addr, time.Duration, error) {
	var answers [2]answer
	var asking sync.WaitGroup
	for i, kind := range [...]uint16{dns.TypeA, dns.TypeAAAA} {
		asking.Go(func() { answers[i] = k.ask(ctx, full, kind) })
	}
	asking.Wait()
	var out answer
	for _, a := range answers {
		if a.err != nil {
			if out.err == nil || !errors.Is(a.err, ErrNotFound) && (errors.Is(out.err, ErrNotFound) || !errors.Is(a.err, errRefused)) {
				out.err = a.err // the one that says least of the name
			}
			continue
		}
		if len(a.addresses) > 0 && (out.addresses == nil || a.ttl < out.ttl) {
			out.ttl = a.ttl
		}
		out.addresses = append(out.addresses, a.addresses...)
	}
	if len(out.addresses) > 0 {
		return out.addresses, out.ttl, nil
	}
	return nil, 0, out.err
}

// ask asks each server in turn until one answers for the name, as often as resolv.conf says.
func (k *asker) ask(ctx context.Context, full string, kind uint16) (out answer) {
	c := k.config
	limit := question
	if c.Timeout > 0 {
		limit = min(limit, time.Duration(c.Timeout)*time.Second)
	}
	for range max(1, min(c.Attempts, maxAttempts)) {
		first := int(k.first.Load())
		silent := false
		for i := range c.Servers {
			at := (first + i) % len(c.Servers)
			r, err := exchange(ctx, limit, full, kind, netJoin(c.Servers[at], c.Port))
			if err != nil {
				silent = true
				if !errors.Is(out.err, errRefused) {
					out.err = fmt.Errorf("%s: %w", c.Servers[at], err)
				}
				continue
			}
			switch r.Rcode {
			case dns.RcodeSuccess:
				k.first.Store(int64(at))
				return read(r)
			case dns.RcodeNameError:
				k.first.Store(int64(at))
				return answer{err: ErrNotFound}
			}
			out.err = fmt.Errorf("%w: %s answers %s", errRefused, c.Servers[at], dns.RcodeToString[r.Rcode])
		}
		if !silent || ctx.Err() != nil {
			break
		}
	}
	return out
}

// exchange asks one server by UDP, again without EDNS if it does not know that, and again by TCP if
// the answer was cut short. Each has its own time.
func exchange(ctx context.Context, limit time.Duration, full string, kind uint16, server string) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(full, kind)
	q.SetEdns0(1232, false)
	by := func(transport string) (*dns.Msg, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		r, _, err := (&dns.Client{Net: transport, Timeout: limit}).ExchangeContext(ctx, q, server)
		return r, err
	}
	r, err := by("udp")
	if err == nil && (r.Rcode == dns.RcodeFormatError || r.Rcode == dns.RcodeNotImplemented) {
		q.Extra = nil
		r, err = by("udp")
	}
	if err == nil && r.Truncated {
		r, err = by("tcp")
	}
	return r, err
}

// read takes the addresses of an answer; they hold as long as the first of its records.
func read(r *dns.Msg) (out answer) {
	least := uint32(1 << 31)
	for _, rr := range r.Answer {
		least = min(least, rr.Header().Ttl)
		var ip netip.Addr
		switch x := rr.(type) {
		case *dns.A:
			ip, _ = netip.AddrFromSlice(x.A)
		case *dns.AAAA:
			ip, _ = netip.AddrFromSlice(x.AAAA)
		}
		if ip.IsValid() {
			out.addresses = append(out.addresses, ip.Unmap())
		}
	}
	out.ttl = time.Duration(least) * time.Second
	return out
}

func netJoin(host, port string) string {
	if a, err := netip.ParseAddr(host); err == nil && a.Is6() {
		return "[" + host + "]:" + port
	}
	return host + ":" + port
}
