package resolve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
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

// inDomains asks for host itself and in each search domain, until it is found.
func inDomains(ctx context.Context, c *dns.ClientConfig, host string) ([]netip.Addr, time.Duration, error) {
	for _, full := range c.NameList(host) {
		found, ttl, err := both(ctx, c, full)
		if len(found) > 0 {
			return found, ttl, nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, 0, fmt.Errorf("resolve %s: %w", host, err)
		}
	}
	return nil, 0, fmt.Errorf("resolve %s: %w", host, ErrNotFound)
}

// answer is that of one question.
type answer struct {
	addresses []netip.Addr
	ttl       time.Duration
	err       error
}

// both asks for both families at once. One that fails while the other one has addresses
// is as if it had none.
func both(ctx context.Context, c *dns.ClientConfig, full string) ([]netip.Addr, time.Duration, error) {
	var answers [2]answer
	var asking sync.WaitGroup
	for i, kind := range [...]uint16{dns.TypeA, dns.TypeAAAA} {
		asking.Go(func() { answers[i] = ask(ctx, c, full, kind) })
	}
	asking.Wait()
	var out answer
	for _, a := range answers {
		if a.err != nil {
			out.err = a.err
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

// ask asks each server in turn until one answers.
func ask(ctx context.Context, c *dns.ClientConfig, full string, kind uint16) (out answer) {
	q := new(dns.Msg).SetQuestion(full, kind)
	q.SetEdns0(1232, false)
	for _, server := range c.Servers {
		sctx, cancel := context.WithTimeout(ctx, time.Second)
		r, err := exchange(sctx, q, netJoin(server, c.Port))
		cancel()
		switch {
		case err != nil:
			out.err = fmt.Errorf("%s: %w", server, err)
			continue
		case r.Rcode == dns.RcodeNameError:
			out.err = ErrNotFound
			return out
		case r.Rcode != dns.RcodeSuccess:
			out.err = fmt.Errorf("%s answers %s", server, dns.RcodeToString[r.Rcode])
			continue
		}
		return read(r)
	}
	return out
}

// exchange asks by UDP, and again by TCP if the answer was cut short.
func exchange(ctx context.Context, q *dns.Msg, server string) (*dns.Msg, error) {
	r, _, err := (&dns.Client{Net: "udp"}).ExchangeContext(ctx, q, server)
	if err == nil && r.Truncated {
		r, _, err = (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, q, server)
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
