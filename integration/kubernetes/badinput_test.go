package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is wrong with an object, kubectl describe shows there and isthmus check shows, with what
// to do; everything else goes on.
func TestBadInputIsShownAtTheObjectAndByCheck(t *testing.T) {
	o := openOffice(t)
	o.export("east", "hello", 80, 8080)
	o.export("east", "well", 80, 8080)
	o.open()
	local := func(name string, labels map[string]string, ports ...corev1.ServicePort) *corev1.Service {
		s := service(name, labels, ports...)
		s.Namespace = "default"
		return s
	}
	outside := local("outside", global, corev1.ServicePort{Port: 80})
	empty := local("empty", global, corev1.ServicePort{Port: 80})
	outside.Spec.Selector, empty.Spec.Selector = nil, nil
	o.cluster.apply(t, local("hello", nil, corev1.ServicePort{Name: "web", Port: 8000}), outside, empty,
		local("odd", map[string]string{"istio.io/global": "true", "solo.io/service-scope": "cluster"}, corev1.ServicePort{Port: 80}),
		local("mistyped", map[string]string{"istio.io/global": "yes"}, corev1.ServicePort{Port: 80}))
	port := int32(80)
	if _, err := o.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "outside-1", Labels: map[string]string{"kubernetes.io/service-name": "outside"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"203.0.113.9"}}}, Ports: []discoveryv1.EndpointPort{{Port: &port}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"hello", "missing"} {
		o.declare(name)
	}
	o.hire("controller-1")
	op := newOperator(t, map[string]*cluster{"west": o.cluster})
	checked := func() string {
		out, code := op.shell(t, "isthmus check --contexts west")
		if code != 1 { // the cluster has no link card
			t.Errorf("check exits with %d:\n%s", code, out)
		}
		return out
	}
	for _, x := range []struct{ what, kind, name, code, remedy string }{
		{"conflicting labels", "Service", "odd", "ISTH-110", "remove one of the two"},
		{"a label of another word", "Service", "mistyped", "ISTH-110", "write one of them"},
		{"a Service without selector, for an address that is no pod's", "Service", "outside", "ISTH-110", "other networks reach only pods"},
		{"a Service without selector and without endpoints", "Service", "empty", "ISTH-110", "write the labels of its pods"},
		{"an export of a Service that is not there", "ServiceExport", "missing", "ISTH-110", "create the Service"},
		{"exports with different ports", "ServiceExport", "hello", "ISTH-111", "PortConflict"},
	} {
		var described string
		eventually(t, 60*time.Second, fmt.Sprintf("%s: kubectl describe shows %q", x.what, x.remedy), func() bool {
			described = op.does(t, fmt.Sprintf("kubectl --context west --namespace default describe %s %s", x.kind, x.name))
			return strings.Contains(described, x.remedy)
		})
		out, found := checked(), false
		_, rest, _ := strings.Cut(out, "! "+x.code)
		for line := range strings.Lines(rest) {
			if strings.HasPrefix(strings.TrimSpace(line), "→") {
				break
			}
			found = found || strings.Contains(line, x.kind+" default/"+x.name) && strings.Contains(line, x.remedy)
		}
		if !found {
			t.Errorf("%s: check does not show it under %s:\n%s", x.what, x.code, out)
		}
	}
	eventually(t, 30*time.Second, "what is well is imported", func() bool { return addressesOf(o.imports()["well"]) != "" })
}

// Two clusters whose link cards have one name are named by check, with the remedy.
func TestOneNetworkNameInTwoClustersIsShownByCheck(t *testing.T) {
	c := startCluster(t)
	op := newOperator(t, map[string]*cluster{"west": c, "again": c})
	op.does(t, "isthmus init --network west --apply --context west")
	out, code := op.shell(t, "isthmus check --contexts west,again")
	if code != 1 || !strings.Contains(out, "✗ ISTH-201") || !strings.Contains(out, `both are network "west"`) || !strings.Contains(out, "make one of the networks anew with another name") {
		t.Errorf("check exits with %d:\n%s", code, out)
	}
}
