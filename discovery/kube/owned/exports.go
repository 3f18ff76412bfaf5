package owned

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// Exports follows the ServiceExports of the cluster, and writes their conditions. Safe for
// concurrent use.
type Exports struct{ follower }

// Exports returns what follows ServiceExports; run it once.
func (c *Client) Exports() *Exports { return &Exports{c.follower("ServiceExport", "serviceexports")} }

// All returns the conditions that ServiceExports have; not ok as long as they are not all
// known.
func (e *Exports) All() (map[vip.Name][]imports.Condition, bool) {
	return all(&e.follower, conditionsOf)
}

// Write gives the ServiceExport of this name the conditions in place of those of their
// kinds. It fails with ErrStale if it has changed since All, and with ErrGone if there is none.
func (e *Exports) Write(ctx context.Context, n vip.Name, conditions []imports.Condition) error {
	object, version := e.get(n)
	if object == nil {
		return fmt.Errorf("%s %s: %w", e.kind, n, ErrGone)
	}
	return e.client.once(ctx, "status "+e.resource, func(ctx context.Context) error {
		object := object.DeepCopy()
		status, _, _ := unstructured.NestedMap(object.Object, "status")
		if status == nil {
			status = map[string]any{}
		}
		list := listAt(object, "status", "conditions")
		for _, c := range conditions {
			var next []map[string]any
			for _, x := range withCondition(list, c, object.GetGeneration(), time.Now()) {
				if m, ok := x.(map[string]any); ok {
					next = append(next, m)
				}
			}
			list = next
		}
		out := make([]any, 0, len(list))
		for _, m := range list {
			out = append(out, m)
		}
		status["conditions"] = out
		object.Object["status"] = status
		object, err := e.client.dynamic.Resource(e.at(version)).Namespace(n.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
		if err == nil {
			e.change(func(k *known) { k.wrote(object) })
		}
		return err
	})
}

func conditionsOf(o *unstructured.Unstructured) (out []imports.Condition) {
	for _, c := range listAt(o, "status", "conditions") {
		out = append(out, imports.Condition{Kind: textAt(c, "type"), Status: textAt(c, "status"), Reason: textAt(c, "reason"), Message: textAt(c, "message")})
	}
	return out
}
