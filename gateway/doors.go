package gateway

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/gossip"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/hostport"
	"github.com/isthmus-mesh/isthmus/internal/resolve"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// doors are the networks whose gateways discovery does not list: they are found by the
// addresses of federation.networks, and by what those that live there say of themselves.
// Safe for concurrent use.
type doors struct {
	own      string // network
	domain   string // trust domain of the mesh
	snapshot func() *mesh.Snapshot
	names    *resolve.Resolver
	lookup   resolve.Lookup // of what names does not follow

	mu    sync.Mutex
	links map[string]keyfile.Link

	list    atomic.Pointer[[]gossip.Door]
	changed chan struct{}
}

// maxDoorAddresses is at how many addresses one network is dialed.
const maxDoorAddresses = 32

// resolvConf names the DNS servers of this machine, or pod.
const resolvConf = "/etc/resolv.conf"

func newDoors(own, domain string, snapshot func() *mesh.Snapshot, lookup resolve.Lookup) *doors {
	d := &doors{own: own, domain: domain, snapshot: snapshot, lookup: lookup, changed: make(chan struct{}, 1)}
	d.names = resolve.New(lookup, d.hurry)
	d.list.Store(&[]gossip.Door{})
	return d
}

func (d *doors) hurry() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// setLinks takes what federation.networks says.
func (d *doors) setLinks(links map[string]keyfile.Link) {
	d.mu.Lock()
	d.links = links
	d.mu.Unlock()
	if len(d.all()) == 0 { // before run
		d.update(nil)
	}
	d.hurry()
}

// all are those that are known; they are not to be changed.
func (d *doors) all() []gossip.Door { return *d.list.Load() }

// unreachable has the names of an address resolved again if all of their addresses fail.
func (d *doors) unreachable(at netip.AddrPort) { d.names.Unreachable(at.Addr()) }

// shows reports whether the gateways of any of these networks show id.
func (d *doors) shows(id spiffeid.ID) bool {
	return slices.ContainsFunc(d.all(), func(x gossip.Door) bool { return x.Identity == id })
}

// doorsEvery is how often what the file, DNS and other networks say is put together at least.
const doorsEvery = time.Second

// run keeps them up to date with what read says of other networks' gateways until ctx ends.
func (d *doors) run(ctx context.Context, heard *gossip.Subscription, read func() map[string][]record.Address) {
	var names sync.WaitGroup
	names.Go(func() { d.names.Run(ctx) })
	defer names.Wait()
	tick := time.NewTicker(doorsEvery)
	defer tick.Stop()
	for {
		d.update(read())
		for waiting := true; waiting; {
			waiting = false
			select {
			case <-ctx.Done():
				return
			case <-d.changed:
			case <-tick.C:
			case <-heard.C(): // of services, nothing matters here
				waiting = !slices.ContainsFunc(heard.Take(), func(c ledger.Change) bool { return c.All || c.Key.Service == "" })
			}
		}
	}
}

// update puts together where each network is dialed: where the file says, and where its
// gateways that live say they are.
func (d *doors) update(told map[string][]record.Address) {
	d.mu.Lock()
	defer d.mu.Unlock()
	snap := d.snapshot()
	var list []gossip.Door
	var follow []string
	for _, network := range slices.Sorted(maps.Keys(d.links)) {
		link := d.links[network]
		if network == d.own || len(link.Addresses) == 0 && len(snap.Gateways(network)) > 0 {
			continue
		}
		id, domain, account := identity.ParseAccount(cmp.Or(link.GatewayDomain(), d.domain), cmp.Or(link.GatewayServiceAccount, discovery.DefaultGatewayServiceAccount))
		if domain != nil || account != nil {
			continue // the file has been checked, and so has the configuration
		}
		x := gossip.Door{Network: network, Identity: id}
		add := func(host string, port uint16, written bool) {
			found := []netip.Addr{}
			if ip, err := netip.ParseAddr(host); err == nil {
				found = append(found, ip.Unmap())
			} else if hostport.IsName(host) {
				follow = append(follow, host)
				found, _ = d.names.Addresses(host)
			}
			for _, ip := range found {
				at := netip.AddrPortFrom(ip, port)
				if len(x.Addresses) < maxDoorAddresses && !slices.Contains(x.Addresses, at) && (written || discovery.NotElsewhere(snap, d.own, at) == "") {
					x.Addresses = append(x.Addresses, at)
				}
			}
		}
		for _, a := range link.Addresses {
			if host, port, err := hostport.Split(a); err == nil {
				add(host, port, true)
			}
		}
		for _, a := range told[network] {
			add(a.Host, a.Port, false)
		}
		x.Dialled = len(link.Addresses) > 0 || len(x.Addresses) > 0
		list = append(list, x)
	}
	d.names.Follow(follow...)
	d.list.Store(&list)
}

// problems says which networks nobody is heard of, and why that may be.
func (d *doors) problems(live func(network string) bool) (list []string) {
	d.mu.Lock()
	links := d.links
	d.mu.Unlock()
	for _, x := range d.all() {
		if live(x.Network) {
			continue
		}
		switch written := links[x.Network].Addresses; {
		case len(written) == 0:
			list = append(list, fmt.Sprintf("no gateway of network %s is heard: federation.networks names no address of it, so that its gateways have to dial here: add addresses there, or see to it that they reach this gateway's address", x.Network))
		case len(x.Addresses) == 0:
			why := ""
			for _, a := range written {
				if host, _, err := hostport.Split(a); err == nil {
					if _, err := d.names.Addresses(host); err != nil {
						why = ": " + err.Error()
					}
				}
			}
			list = append(list, fmt.Sprintf("no gateway of network %s is heard: addresses %q of federation.networks lead nowhere%s: correct them, or their DNS records", x.Network, written, why))
		default:
			list = append(list, fmt.Sprintf("no gateway of network %s is heard at %s: see whether that address leads there, whether a firewall lets port %d by, and whether this network is in its federation.networks", x.Network, x.Addresses[0], x.Addresses[0].Port()))
		}
	}
	return list
}

// publishedAddresses returns the addresses that of selects from the records of current gateways, by network.
func (g *Gateway) publishedAddresses(of func(*record.Network) []record.Address) map[string][]record.Address {
	out := map[string][]record.Address{}
	g.fed.Read(func(l *ledger.Ledger) {
		for _, s := range l.Status() {
			if s.Own || s.Network == g.cfg.Network || s.Body == nil || s.Phase != ledger.Live && s.Phase != ledger.Silent {
				continue
			}
			for _, a := range of(s.Body) {
				if !slices.Contains(out[s.Network], a) {
					out[s.Network] = append(out[s.Network], a)
				}
			}
		}
	})
	return out
}

// tcpAddresses returns where gateways of other networks are dialed over TCP.
func (g *Gateway) tcpAddresses() map[string][]record.Address {
	return g.publishedAddresses(func(n *record.Network) []record.Address { return n.Addresses })
}

// hears reports whether an instance of network is believed.
func (g *Gateway) hears(network string) (live bool) {
	g.fed.Read(func(l *ledger.Ledger) {
		for _, s := range l.Status() {
			live = live || s.Network == network && s.Phase == ledger.Live
		}
	})
	return live
}
