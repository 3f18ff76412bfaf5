package mesh

import "testing"

func TestPodNameIsWhatTheUIDDoesNotSay(t *testing.T) {
	for _, c := range []struct{ uid, namespace, name, want string }{
		{"3c8bab73-5fbf-4254-9d3f-5a1c7d2f8e10", "demo", "hello-a", "demo/hello-a"},
		{"west/demo/hello-a", "demo", "hello-a", ""},
		{"demo/hello-a", "demo", "hello-a", ""},
		{"west/mydemo/hello-a", "demo", "hello-a", "demo/hello-a"},
		{"hello-a", "", "hello-a", ""},
		{"hello-a", "demo", "", ""},
		{"hello-a", "default", "hello-a", ""},
	} {
		if got := (&Workload{UID: c.uid, Namespace: c.namespace, Name: c.name}).PodName(); got != c.want {
			t.Errorf("%s, %s/%s: %q, want %q", c.uid, c.namespace, c.name, got, c.want)
		}
	}
}
