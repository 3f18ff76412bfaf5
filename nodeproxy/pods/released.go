package pods

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// releaseEvery is how often rules are looked for that a node proxy which still runs may have set.
const releaseEvery = 5 * time.Second

// Release takes the rules of this mesh's node proxies out of all pods of the node, until ctx ends. First it
// leaves tables without rules: without any the kernel would no longer translate the connections that a node proxy which
// is to stop still carries. Those are taken out when that one has had its time to drain.
func Release(ctx context.Context, o Options, log zerolog.Logger) {
	finder := podns.Finder{Proc: o.Proc}
	said := ""
	r := released{o: o, log: log, emptied: map[podns.ID]time.Time{}}
	for more := true; more; {
		more = pause(ctx, r.wait())
		r.all = !more // there is no other time
		pods, err := finder.All()
		if err != nil && err.Error() != said {
			said = err.Error()
			log.Error().Err(err).Msg("cannot look for the network namespaces of pods: " + findRemedy(err))
		}
		for uid, s := range pods {
			r.pod(uid, s.Namespace)
			s.Close()
		}
		for _, n := range o.Namespaces {
			if ns, err := podns.Open(n.Path); err == nil {
				r.pod(n.Workload, ns)
				ns.Close()
			}
		}
	}
}

// released is how far rules have been taken out.
type released struct {
	o       Options
	log     zerolog.Logger
	began   bool
	all     bool                   // tables go now
	emptied map[podns.ID]time.Time // since when a table has no rules
}

// wait is how long to wait for the next look.
func (r *released) wait() time.Duration {
	if !r.began {
		r.began = true
		return 0
	}
	return min(releaseEvery, max(r.o.Drain, releaseEvery/10))
}

// pod takes out what is there.
func (r *released) pod(uid string, ns *podns.Namespace) {
	if home, err := podns.Own(); err != nil || ns.ID() == home {
		return
	}
	owner, there, err := capture.Owner(ns)
	switch {
	case err != nil:
	case there && owner == r.o.owner():
		err = r.step(uid, owner, ns)
	case !there && r.all:
		err = remains(ns)
	default:
		delete(r.emptied, ns.ID())
	}
	if err != nil {
		r.log.Error().Str("workload", uid).Err(err).Msg("cannot take rules out of a pod")
	}
}

// step empties a table, or takes it out when that was long enough ago.
func (r *released) step(uid, owner string, ns *podns.Namespace) error {
	none := capture.Rules{Owner: owner}
	since, emptied := r.emptied[ns.ID()]
	hold, err := capture.Hold(ns, none)
	switch {
	case err != nil:
		return err
	case r.all, emptied && hold && time.Since(since) >= r.o.Drain:
		if err := errors.Join(capture.RemoveSource(ns), capture.Remove(ns)); err != nil {
			return err
		}
		delete(r.emptied, ns.ID())
		r.log.Info().Str("workload", uid).Str("owner", owner).Msg("released")
		return nil
	case hold && emptied:
		return nil
	}
	r.emptied[ns.ID()] = time.Now() // again, if another process has set its own
	return capture.Set(ns, none)
}

// remains takes out what our table does not hold, where somebody has flushed that.
func remains(ns *podns.Namespace) error {
	if capture.Free(ns, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), capture.OutboundPort)) != nil {
		return nil // a node proxy is there, of whatever mesh, and needs it
	}
	return capture.RemoveSource(ns)
}
