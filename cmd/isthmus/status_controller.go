package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// writeController says how it stands with a controller; its problems have been said.
func writeController(b *strings.Builder, now time.Time, c *answer.Controller) {
	switch {
	case c.Leader == "":
		b.WriteString("nobody is known to lead\n")
	case c.Leading:
		fmt.Fprintf(b, "leads since %s\n", age(now, c.Since))
	default:
		fmt.Fprintf(b, "%s leads, as is known here since %s\n", plain(c.Leader), age(now, c.Since))
	}
	fmt.Fprintf(b, "%d gateways tell what other networks export; %d imports, %d of them ours", c.Attached, c.Imports, c.Own)
	if c.VIPs != nil {
		fmt.Fprintf(b, "; %d virtual addresses used, %d free", c.VIPs.Used, c.VIPs.Free)
	}
	b.WriteString("\n")
	var results []string
	for _, r := range slices.Sorted(maps.Keys(c.Certificates)) {
		results = append(results, fmt.Sprintf("%d %s", c.Certificates[r], plain(r)))
	}
	if len(results) > 0 {
		fmt.Fprintf(b, "requests for certificates: %s\n", strings.Join(results, ", "))
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	if len(c.Held) > 0 {
		fmt.Fprintln(w, "HELD BACK\tNAMESPACE\tNAME\tFAILURES\tAGAIN\tWHY")
		for _, h := range c.Held {
			again := "now"
			if h.Until.After(now) && !now.IsZero() {
				again = "in " + standing.Age(h.Until.Sub(now))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", plain(h.Write), orNothing(h.Namespace), orNothing(h.Name), h.Failures, again, plain(h.Why))
		}
	}
	fmt.Fprintln(w, "SOURCE\tOBJECTS\tAGE\t")
	for _, s := range c.Sources {
		said := plain(s.Error)
		switch {
		case s.Absent:
			said = absentSource(s.Kind)
		case s.Unread && said == "":
			said = "not read yet"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", plain(s.Kind), s.Objects, standing.Age(time.Duration(s.AgeMS)*time.Millisecond), said)
	}
	w.Flush()
}

// absentSource is what it means that the API server has no such kind, which is no fault.
func absentSource(kind string) string {
	switch kind {
	case "serviceimports":
		return "the API server has no such kind (helm/isthmus-crds has): services of other networks have no virtual address and no name in clusterset.local here"
	case "serviceexports":
		return "the API server has no such kind (helm/isthmus-crds has): services are exported by label alone"
	}
	return "the API server has no such kind"
}
