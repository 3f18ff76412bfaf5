package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// Of pods that are not ready it is said why, with what to do for that; pods that are so for one
// reason are one line.
func TestCheckSaysWhyPodsAreNotReady(t *testing.T) {
	chart := with(initialised(t), charted("west", "west.local"), map[string]string{
		"deployment-isthmus-gateway": `{"spec":{"replicas":2},"status":{"readyReplicas":0,"updatedReplicas":2}}`})
	pod := func(name, conditions, container string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"status":{"conditions":[%s],"containerStatuses":[%s]}}`, name, conditions, container)
	}
	waiting := func(reason, message string) string {
		return fmt.Sprintf(`{"name":"gateway","image":"localhost/isthmus-gateway:v1","state":{"waiting":{"reason":%q,"message":%q}}}`, reason, message)
	}
	crashed := func(code int, reason, message string) string {
		return fmt.Sprintf(`{"name":"gateway","restartCount":4,"state":{"waiting":{"reason":"CrashLoopBackOff"}},"lastState":{"terminated":{"exitCode":%d,"reason":%q,"message":%q}}}`, code, reason, message)
	}
	const running = `{"name":"gateway","state":{"running":{}}}`
	event := func(kind, name, reason, message string) string {
		return fmt.Sprintf(`{"involvedObject":{"kind":%q,"name":%q},"reason":%q,"message":%q,"lastTimestamp":"2026-11-23T12:00:00Z"}`, kind, name, reason, message)
	}
	upgrade := "helm --kube-context w --namespace isthmus-system upgrade mesh helm/isthmus --reuse-values "
	for name, x := range map[string]struct {
		pods, events, logs string
		want, not          []string
	}{
		"no image, twice": {pod("gw-1", "", waiting("ImagePullBackOff", "not found")) + "," + pod("gw-2", "", waiting("ImagePullBackOff", "not found")), "", "",
			[]string{`gw-1, gw-2: ImagePullBackOff: image "localhost/isthmus-gateway:v1": not found`, upgrade + "--set-string image.registry=REGISTRY,image.tag=TAG"}, []string{"describe"}},
		"two reasons": {pod("gw-1", "", waiting("ErrImagePull", "x")) + "," + pod("gw-2", `{"type":"PodScheduled","status":"False","message":"0/3 nodes are available: Insufficient memory."}`, ""), "", "",
			[]string{"gw-1: ErrImagePull", "gw-2: not scheduled: 0/3 nodes are available: Insufficient memory.", "image.tag=TAG", upgrade + "--set gateway.KEY=VALUE"}, nil},
		"crash, by its message": {pod("gw-1", "", crashed(2, "Error", "first\ngateway.yaml:2: netwrok: no such key")), "", "",
			[]string{"gw-1: it ended with exit code 2 and was restarted, 4 times in all: gateway.yaml:2: netwrok: no such key\n", "kubectl --context w --namespace isthmus-system logs gw-1 --previous"}, []string{"first"}},
		"crash, by its log":    {pod("gw-1", "", crashed(3, "Error", "")), "", "no keys are there\n", []string{"exit code 3 and was restarted, 4 times in all: no keys are there"}, nil},
		"crash, log forbidden": {pod("gw-1", "", crashed(3, "Error", "")), "", `Error from server (Forbidden): pods "gw-1" is forbidden: User "ann" cannot get resource "pods/log" in API group "" in the namespace "isthmus-system"`, []string{"exit code 3 and was restarted, 4 times in all\n", `! ISTH-116`, `"ann" may not get pods/log in namespace isthmus-system`}, nil},
		"out of memory":        {pod("gw-1", "", crashed(137, "OOMKilled", "")), "", "", []string{"exit code 137 (OOMKilled)", upgrade + "--set gateway.resources.limits.memory=1Gi"}, nil},
		"a volume": {pod("gw-1", "", waiting("ContainerCreating", "")), event("Pod", "gw-2", "FailedMount", "another pod's") + "," + event("Pod", "gw-1", "FailedMount", `MountVolume.SetUp failed for volume "root" : configmap "mine" not found`), "",
			[]string{`gw-1: it cannot mount: MountVolume.SetUp failed for volume "root" : configmap "mine" not found`, "describe pod gw-1"}, []string{"another"}},
		"readiness":      {pod("gw-1", "", running), event("Pod", "gw-1", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503"), "", []string{"gw-1: Readiness probe failed", "kubectl --context w --namespace isthmus-system logs gw-1"}, []string{"--previous"}},
		"evicted":        {`{"metadata":{"name":"gw-1"},"status":{"phase":"Failed","reason":"Evicted","message":"The node was low on resource: memory."}}`, "", "", []string{"gw-1: Evicted: The node was low"}, nil},
		"pod security":   {"", event("ReplicaSet", "isthmus-gateway-5d9c", "FailedCreate", `pods "x" is forbidden: violates PodSecurity "restricted:latest"`), "", []string{"some cannot be made: pods", "kubectl --context w --namespace isthmus-system label namespace isthmus-system pod-security.kubernetes.io/enforce=privileged"}, nil},
		"quota":          {"", event("ReplicaSet", "isthmus-gateway-5d9c", "FailedCreate", `pods "x" is forbidden: exceeded quota: critical`), "", []string{"exceeded quota: critical", "criticalPodsQuota=true"}, nil},
		"another's":      {"", event("ReplicaSet", "isthmus-controller-5d9c", "FailedCreate", "not these"), "", []string{"0 of 2 are ready\n", "describe pods --selector app.kubernetes.io/name=isthmus-gateway"}, []string{"not these"}},
		"ready and gone": {pod("gw-1", `{"type":"Ready","status":"True"}`, "") + `,{"metadata":{"name":"gw-2","deletionTimestamp":"2026-11-23T12:00:00Z"}}`, "", "", []string{"0 of 2 are ready\n"}, []string{"gw-"}},
	} {
		program := fakeCluster(t, with(chart, map[string]string{"pods": `{"items":[` + x.pods + `]}`, "events": `{"items":[` + x.events + `]}`, "logs-gw-1": x.logs}))
		out := asPlain(t, program)
		wantIn(t, out, append(x.want, "✗ ISTH-104")...)
		for _, s := range x.not {
			if strings.Contains(one(out, "ISTH-104"), s) {
				t.Errorf("%s: it says %q:\n%s", name, s, out)
			}
		}
	}
}

// asPlain is what check says of a cluster by a program, as if that were kubectl.
func asPlain(t *testing.T, program string) string {
	t.Helper()
	_, out, _ := isthmus(t, "check", "--contexts", "w", "--kubectl", program)
	return strings.ReplaceAll(strings.ReplaceAll(out, " --kubectl "+program, ""), program, "kubectl")
}

// A process that runs and is not ready is asked what it waits for.
func TestCheckAsksAPodThatIsNotReady(t *testing.T) {
	gw := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(answer.Status{Process: "gateway gw-1", Network: "east", Now: time.Now(), Pending: []string{"certificate of x: refused", "a stream"}})
	}))
	defer gw.Close()
	program := fakeCluster(t, with(initialised(t), charted("west", "west.local"), map[string]string{
		"deployment-isthmus-gateway": `{"spec":{"replicas":1},"status":{"updatedReplicas":1}}`,
		"pods":                       `{"items":[{"metadata":{"name":"gw-1"},"status":{"containerStatuses":[{"name":"gateway","state":{"running":{}}}]}}]}`}))
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	forward := "case $1 in\nport-forward) [ $2 = pod/gw-1 ] || exit 1; echo 'Forwarding from " + gw.Listener.Addr().String() + " -> 15000'; exec sleep 60;;\n"
	if err := os.WriteFile(program, []byte(strings.Replace(string(b), "case $1 in\n", forward, 1)), 0o700); err != nil {
		t.Fatal(err)
	}
	wantIn(t, one(asPlain(t, program), "✗ ISTH-104"), "gw-1: it waits: a stream; certificate of x: refused")
}
