package owned

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
)

const conditionType = "Ready"

// clustersAnnotation is by whose exports a ServiceImport was written, with commas between:
// its status says so too, and is written later.
const clustersAnnotation = "isthmus.io/clusters"

// Imports follows and writes the ServiceImports of the cluster. Safe for concurrent use.
type Imports struct{ follower }

// Imports returns what follows ServiceImports; run it once.
func (c *Client) Imports() *Imports { return &Imports{c.follower("ServiceImport", "serviceimports")} }

// All returns the imports that there are; not ok as long as they are not all known.
func (i *Imports) All() (map[vip.Name]imports.Import, bool) { return all(&i.follower, read) }

// versionOf returns the version of the group that resource is asked for in, empty if there
// is none.
func (c *Client) versionOf(ctx context.Context, resource string) (out string, err error) {
	err = c.once(ctx, "discover "+resource, func(ctx context.Context) error {
		for _, version := range []string{"v1beta1", "v1alpha1"} {
			l, err := kube.Resources(ctx, c.core.Discovery(), group+"/"+version)
			if apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return err
			}
			if slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }) {
				out = version
				return nil
			}
		}
		return nil
	})
	return out, err
}

// Do does w. It fails with ErrStale if the import has changed since All, and with ErrGone
// if it, or its namespace, is not there.
func (i *Imports) Do(ctx context.Context, w imports.Write) error {
	object, version := i.get(w.Import.Name)
	r := i.client.dynamic.Resource(i.at(version)).Namespace(w.Import.Namespace)
	switch {
	case version == "":
		return fmt.Errorf("%s %s: %w: the API server has no such kind", w.Do, i.kind, ErrGone)
	case w.Do == imports.Create && object != nil, w.Do != imports.Create && (object == nil || object.GetResourceVersion() != w.Import.Version):
		return fmt.Errorf("%s %s %s: %w", w.Do, i.kind, w.Import.Name, ErrStale)
	}
	return i.client.once(ctx, w.Do.String()+" "+i.resource, func(ctx context.Context) error {
		var err error
		switch w.Do {
		case imports.Delete:
			uid, version := types.UID(w.Import.UID), w.Import.Version
			if err = r.Delete(ctx, w.Import.Name.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}); err == nil {
				i.change(func(k *known) { k.deleted(object) })
			}
			return err
		case imports.Create:
			object = &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/" + version, "kind": i.kind}}
			object.SetNamespace(w.Import.Namespace)
			object.SetName(w.Import.Name.Name)
			object.SetLabels(map[string]string{ManagedByLabel: ManagedBy})
			writeSpec(object, w.Import)
			if object, err = r.Create(ctx, object, metav1.CreateOptions{}); err != nil {
				return err
			}
		case imports.Update:
			object = object.DeepCopy()
			writeSpec(object, w.Import)
			if object, err = r.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
				return err
			}
		default:
			object = object.DeepCopy()
		}
		i.change(func(k *known) { k.wrote(object) }) // the informer says so later
		if is := read(object); !is.Behind && is.Ready == w.Import.Ready && is.Waits == w.Import.Waits && slices.Equal(is.Clusters, w.Import.Clusters) {
			return nil
		}
		writeStatus(object, w.Import, time.Now())
		if object, err = r.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err == nil {
			i.change(func(k *known) { k.wrote(object) })
		}
		return err
	})
}

// read returns what an object says.
func read(o *unstructured.Unstructured) imports.Import {
	out := imports.Import{Name: vip.Name{Namespace: o.GetNamespace(), Name: o.GetName()}, Ours: o.GetLabels()[ManagedByLabel] == ManagedBy,
		Version: o.GetResourceVersion(), UID: string(o.GetUID()), Created: o.GetCreationTimestamp().Time, Behind: true, Ending: o.GetDeletionTimestamp() != nil}
	kind, _, _ := unstructured.NestedString(o.Object, "spec", "type")
	out.Headless = kind == "Headless"
	if a, _, _ := unstructured.NestedString(o.Object, "spec", "sessionAffinity"); a != "None" {
		out.Affinity = a
	}
	ips, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "ips")
	for _, text := range ips {
		if a, err := netip.ParseAddr(text); err == nil {
			out.IPs = append(out.IPs, a.Unmap())
		}
	}
	for _, p := range listAt(o, "spec", "ports") {
		port := imports.Port{Name: textAt(p, "name"), Protocol: textAt(p, "protocol"), AppProtocol: textAt(p, "appProtocol")}
		number, _, _ := unstructured.NestedInt64(p, "port")
		if port.Port = uint16(number); port.Protocol == "" {
			port.Protocol = "TCP"
		}
		out.Ports = append(out.Ports, port)
	}
	for _, c := range listAt(o, "status", "clusters") {
		out.Clusters = append(out.Clusters, textAt(c, "cluster"))
	}
	for _, c := range listAt(o, "status", "conditions") {
		if textAt(c, "type") == conditionType {
			if out.Ready = textAt(c, "status") == "True"; !out.Ready {
				out.Waits = textAt(c, "message")
			}
			of, _, _ := unstructured.NestedInt64(c, "observedGeneration")
			out.Behind = of != o.GetGeneration()
		}
	}
	if text := o.GetAnnotations()[clustersAnnotation]; out.Behind && text != "" {
		out.Clusters = append(out.Clusters, strings.Split(text, ",")...)
	}
	slices.Sort(out.Clusters)
	out.Clusters = slices.Compact(out.Clusters)
	return out
}

// listAt returns the objects of a list.
func listAt(o *unstructured.Unstructured, fields ...string) (out []map[string]any) {
	list, _, _ := unstructured.NestedSlice(o.Object, fields...)
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func textAt(m map[string]any, field string) string {
	s, _, _ := unstructured.NestedString(m, field)
	return s
}

func writeSpec(o *unstructured.Unstructured, i imports.Import) {
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	if spec == nil {
		spec = map[string]any{}
	}
	spec["type"] = "ClusterSetIP"
	if i.Headless {
		spec["type"] = "Headless"
	}
	delete(spec, "sessionAffinity")
	if i.Affinity != "" {
		spec["sessionAffinity"] = i.Affinity
	}
	delete(spec, "ips")
	if ips := make([]any, 0, 2); len(i.IPs) > 0 {
		for _, a := range i.IPs {
			ips = append(ips, a.String())
		}
		spec["ips"] = ips
	}
	ports := []any{}
	for _, p := range i.Ports {
		m := map[string]any{"port": int64(p.Port), "protocol": p.Protocol}
		if p.Name != "" {
			m["name"] = p.Name
		}
		if p.AppProtocol != "" {
			m["appProtocol"] = p.AppProtocol
		}
		ports = append(ports, m)
	}
	spec["ports"] = ports
	o.Object["spec"] = spec
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[clustersAnnotation] = strings.Join(i.Clusters, ",")
	o.SetAnnotations(annotations)
}

func writeStatus(o *unstructured.Unstructured, i imports.Import, now time.Time) {
	clusters := []any{}
	for _, c := range i.Clusters {
		clusters = append(clusters, map[string]any{"cluster": c})
	}
	ready := imports.Condition{Kind: conditionType, Status: "True", Reason: "Ready", Message: "other networks export the service, and it has its virtual address"}
	switch {
	case i.Headless:
		ready.Message = "there is no data path to the single pods of a headless service of another network: it has no address"
	case !i.Ready:
		ready.Status, ready.Reason, ready.Message = "False", "Pending", i.Waits
	}
	if i.Ready && i.Affinity != "" {
		ready.Message += "; and spec.sessionAffinity: " + i.Affinity + " is not kept: each connection of a client goes to any pod"
	}
	status, _, _ := unstructured.NestedMap(o.Object, "status")
	if status == nil {
		status = map[string]any{}
	}
	status["clusters"] = clusters
	status["conditions"] = withCondition(listAt(o, "status", "conditions"), ready, o.GetGeneration(), now)
	o.Object["status"] = status
}

// withCondition returns conditions with c in place of that of its kind, whose time of
// transition stays if its status does.
func withCondition(conditions []map[string]any, c imports.Condition, generation int64, now time.Time) (out []any) {
	since := now.UTC().Format(time.RFC3339)
	for _, x := range conditions {
		if textAt(x, "type") != c.Kind {
			out = append(out, x)
		} else if textAt(x, "status") == c.Status && textAt(x, "lastTransitionTime") != "" {
			since = textAt(x, "lastTransitionTime")
		}
	}
	return append(out, map[string]any{"type": c.Kind, "status": c.Status, "reason": c.Reason, "message": c.Message, "lastTransitionTime": since, "observedGeneration": generation})
}
