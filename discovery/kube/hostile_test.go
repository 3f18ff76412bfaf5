package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"net/netip"
)

// While the watch was lost Service s-1 was deleted, and another one got its ClusterIP.
func TestHostileClusterIPOfHeldService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, shops(4)...)
		w.probe = func(context.Context, string) bool { return true } // its pods run still: a selector of another service
		w.run(t)
		<-w.Synced()
		after(5 * time.Second)
		w.refuse(errors.New("connection refused"))
		w.cut()
		after(time.Second)
		s, slice, _ := shopOf(1)
		n := s.DeepCopy()
		n.Name = "z-new"
		ns := slice.DeepCopy()
		ns.Name = "z-new-x"
		ns.Labels = map[string]string{labelOfSlice: "z-new"}
		_, _, pod := shopOf(5)
		ns.Endpoints[0].Addresses = []string{pod.Status.PodIP}
		ns.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod.Name, UID: pod.UID}
		if err := errors.Join(w.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("services"), "shop", s.Name),
			w.api.Tracker().Delete(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "shop", slice.Name),
			w.api.Tracker().Add(n), w.api.Tracker().Add(ns), w.api.Tracker().Add(pod)); err != nil {
			t.Fatal(err)
		}
		w.refuse(nil)
		for _, d := range []time.Duration{5 * time.Second, time.Minute, 7 * time.Minute} {
			after(d)
			svc := w.snapshot().ServiceAt(netip.MustParseAddr(s.Spec.ClusterIP))
			name := "nobody"
			if svc != nil {
				name = svc.Hostname
			}
			if name != "z-new.shop.svc.cluster.local" {
				t.Errorf("after another %v: %s leads to %s; members of the new one: %q; status %q", d, s.Spec.ClusterIP, name, members(w.snapshot(), "z-new.shop.svc.cluster.local"), w.Status().Findings())
			}
		}
	})
}
