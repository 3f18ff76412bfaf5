package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// awaitFronts looks until each cluster has an address at which others dial it, for so long, and
// says on stderr what it waits for whenever that changes. A cluster that waiting does not help is
// a finding at once; one whose address is written, or kept by all others as it was, is not waited for.
func awaitFronts(cmd *cobra.Command, clusters []*linking, written map[string][]string, limit time.Duration) error {
	said, until := "", time.Now().Add(limit)
	for {
		var waits, look []string
		for i, l := range clusters {
			if len(l.card.Addresses) > 0 || keptByHand(clusters, i, written) {
				continue
			}
			f, err := frontOf(cmd.Context(), l.kubectl)
			if err != nil {
				return err
			}
			switch {
			case len(f.addresses) > 0:
				l.card.Addresses = f.addresses
			case !f.pending:
				return exit(exitFinding, fmt.Errorf("--wait: network %q gets no address by waiting: Service isthmus-gateway: %s: give --address %[1]s=ADDRESS; nothing was linked", l.card.Network, f.why))
			default:
				waits = append(waits, fmt.Sprintf("network %q (context %s, Service isthmus-gateway): %s", l.card.Network, l.context, f.why))
				look = append(look, (&place{k: l.kubectl}).fill("`{kubectl} describe "+f.look+"`"))
			}
		}
		if len(waits) == 0 {
			return nil
		}
		now := strings.Join(waits, "; ")
		if now != said {
			fmt.Fprintf(cmd.ErrOrStderr(), "isthmus: waiting for an address of %s\n", now)
			said = now
		}
		if !time.Now().Before(until) {
			return exit(exitFinding, fmt.Errorf("--wait: after %v without an address: %s: %s says why; where none will come give --address NETWORK=ADDRESS; nothing was linked", limit, now, strings.Join(look, ", ")))
		}
		select {
		case <-cmd.Context().Done():
			return exit(exitFinding, cmd.Context().Err())
		case <-time.After(min(time.Second, time.Until(until))):
		}
	}
}

// keptByHand reports whether all others dial the network of a cluster where somebody has said.
func keptByHand(clusters []*linking, i int, written map[string][]string) bool {
	network := clusters[i].card.Network
	if given, is := written[network]; is {
		return len(given) > 0
	}
	others := slices.Delete(slices.Clone(clusters), i, i+1)
	return len(others) > 0 && !slices.ContainsFunc(others, func(o *linking) bool { return !slices.Contains(o.byHand, network) })
}
