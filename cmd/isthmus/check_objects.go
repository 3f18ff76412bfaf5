package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// eventsStand is how long after it was written last an Event of the controller counts: one of
// what stands is written again every 40 minutes.
const eventsStand = 45 * time.Minute

// objectsNamed is how many objects one check names.
const objectsNamed = 20

// objects checks what the controller has written at objects of a cluster: what kubectl
// describe shows there. An error is that the cluster could not be asked.
func (c *checkup) objects(ctx context.Context, p *place, where string, now time.Time) error {
	var events struct {
		Items []struct {
			InvolvedObject        struct{ Kind, Namespace, Name string }
			Type, Reason, Message string
			LastTimestamp         time.Time
		}
	}
	_, err := p.k.list(ctx, &events, "events", "--selector", "app.kubernetes.io/managed-by=isthmus-controller")
	may, err := p.may(err, checkObjects.code)
	if err != nil {
		return err
	}
	var said []string
	for _, e := range events.Items {
		if age := now.Sub(e.LastTimestamp); e.Type == "Warning" && age < eventsStand {
			said = append(said, fmt.Sprintf("%s %s (%s, %v ago): %s", e.InvolvedObject.Kind, strings.TrimPrefix(e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "/"), e.Reason, max(0, age).Round(time.Second), e.Message))
		}
	}
	if may {
		c.add(checkObjects, where, checkWarning, firstOf(said))
	}

	var exports struct {
		Items []struct {
			Metadata struct{ Namespace, Name string }
			Status   struct {
				Conditions []struct{ Type, Status, Reason, Message string }
			}
		}
	}
	there, err := p.k.list(ctx, &exports, "serviceexports."+multicluster)
	if may, err := p.may(err, checkExports.code); !may {
		return err
	}
	if c.kinds(ctx, p, where, there); !there {
		return nil
	}
	said = nil
	for _, e := range exports.Items {
		for _, x := range e.Status.Conditions {
			if well := map[string]string{"Valid": "True", "Ready": "True", "Conflict": "False"}[x.Type]; well != "" && x.Status != well {
				said = append(said, fmt.Sprintf("ServiceExport %s/%s: %s is %s (%s): %s", e.Metadata.Namespace, e.Metadata.Name, x.Type, x.Status, x.Reason, x.Message))
			}
		}
	}
	c.add(checkExports, where, checkWarning, firstOf(said))
	return nil
}

// kinds warns of a cluster with a controller that lacks what it imports by.
func (c *checkup) kinds(ctx context.Context, p *place, where string, there bool) {
	found := ""
	if !there {
		var o struct{}
		if controller, err := p.k.get(ctx, "deployment", "isthmus-controller", &o); err != nil || !controller {
			return // nobody needs them; what could not be asked is said by workloads
		}
		found = "there is no kind ServiceExport of " + multicluster
	}
	c.add(checkKinds, where, checkWarning, found)
}

// firstOf are the first of lines, sorted, and how many there are beside them.
func firstOf(lines []string) string {
	slices.Sort(lines)
	if more := len(lines) - objectsNamed; more > 0 {
		lines = append(lines[:objectsNamed:objectsNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// list reads objects of all namespaces; there is false if the cluster has no such kind.
func (k kubectl) list(ctx context.Context, into any, kind string, args ...string) (there bool, err error) {
	b, err := k.run(ctx, nil, append([]string{"get", kind, "--all-namespaces", "--output", "json", "--ignore-not-found"}, args...)...)
	if err != nil && strings.Contains(err.Error(), "doesn't have a resource type") {
		return false, nil
	}
	if err != nil || len(b) == 0 {
		return err == nil, err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return false, exit(exitStart, fmt.Errorf("%s of context %q: %w", kind, k.context, err))
	}
	return true, nil
}
