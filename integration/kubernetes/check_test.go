package kubernetes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// finding is what check says of a code, with its lines.
func finding(out, code string) string {
	_, after, there := strings.Cut(out, " "+code+" ")
	if !there {
		return ""
	}
	var b strings.Builder
	for i, line := range strings.Split(after, "\n") {
		if i > 0 && !strings.HasPrefix(line, "      ") {
			break
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// remedy is the first remedy that check prints for a code: a command.
func remedy(t *testing.T, out, code string) string {
	t.Helper()
	_, after, there := strings.Cut(finding(out, code), "→ ")
	if !there {
		t.Fatalf("no remedy of %s:\n%s", code, out)
	}
	line, _, _ := strings.Cut(after, "\n")
	return line
}

// What check prints for a cluster that is half installed, or in another namespace, or as another network
// than its keys are of, is run as it is printed, one after the other, and mends it.
func TestCheckLeadsThroughAnInstallation(t *testing.T) {
	helm := os.Getenv("HELM")
	if helm == "" {
		notRun(t, "HELM names no helm: run `make test-kubernetes`")
	}
	c := startCluster(t)
	op := newOperator(t, map[string]*cluster{"west": c})
	if err := os.Symlink(helm, filepath.Join(op.dir, "bin", "helm")); err != nil {
		t.Fatal(err)
	}
	charts, err := filepath.Abs("../../helm")
	if err == nil {
		err = os.Symlink(charts, filepath.Join(op.dir, "helm")) // as in the directory of the repository
	}
	if err != nil {
		t.Fatal(err)
	}
	check := func(more string) string {
		out, code := op.shell(t, "isthmus check --contexts west"+more)
		if code == 3 {
			t.Fatalf("check exits with %d:\n%s", code, out)
		}
		return out
	}
	out := check("")
	if !strings.Contains(finding(out, "ISTH-102"), "follows from ISTH-101") || !strings.Contains(finding(out, "ISTH-107"), "follows from ISTH-104") {
		t.Errorf("of an empty cluster check says\n%s", out)
	}
	filled := strings.NewReplacer("REGISTRY", "localhost", "TAG", "v1", "network=NETWORK", "network=wset", "trustDomain=DOMAIN", "trustDomain=west.local")
	op.does(t, filled.Replace(remedy(t, out, "ISTH-104")))

	if out = check(" --namespace mesh"); strings.Count(out, "✗ ISTH") != 1 || !strings.Contains(out, "✗ ISTH-100") {
		t.Errorf("of another namespace check says\n%s", out)
	}
	if again, _ := op.shell(t, remedy(t, out, "ISTH-100")); !strings.Contains(again, "✗ ISTH-101") {
		t.Errorf("in the namespace of the mesh check says\n%s", again)
	}

	out = check("")
	if want := "isthmus init --network wset --trust-domain west.local --apply --context west"; !strings.HasPrefix(remedy(t, out, "ISTH-101"), want+" # ") {
		t.Errorf("without init check says\n%s\nwant %s", out, want)
	}
	op.does(t, "isthmus init --network west --trust-domain west.local --apply --context west") // mistyped
	out = check("")
	if !strings.Contains(finding(out, "ISTH-114"), `network is "wset", and "west" on the link card`) {
		t.Errorf("of a chart of another network check says\n%s", out)
	}
	op.does(t, remedy(t, out, "ISTH-114"))
	if out = check(""); !strings.Contains(out, "✓ ISTH-114") || !strings.Contains(out, "! ISTH-115") {
		t.Errorf("of the same network check says\n%s", out)
	}
	op.does(t, remedy(t, out, "ISTH-115"))
	if out = check(""); !strings.Contains(out, "✓ ISTH-115") || !strings.Contains(out, "✓ ISTH-111") || !strings.Contains(out, "✓ ISTH-113") {
		t.Errorf("with the kinds check says\n%s", out)
	}
	op.does(t, remedy(t, out, "ISTH-104"))
	op.does(t, remedy(t, out, "ISTH-107"))
}

// Viewers and operators, with the roles of docs/kubernetes/operator.yaml and no others: check names
// what a viewer may not see, and nothing else; operators make, link and check.
func TestRightsOfThePageAreEnough(t *testing.T) {
	c := startCluster(t)
	op := newOperator(t, map[string]*cluster{"west": c})
	roles, err := filepath.Abs("../../docs/kubernetes/operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	chart, err := filepath.Abs("../../helm/testdata/capture.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	op.does(t, "kubectl --context west apply -f "+roles+" && kubectl --context west apply -f "+chart)
	c.definitions(t)
	as := func(name string, groups ...string) string {
		return " --kubeconfig " + c.user(t, c.config.Host, name, groups...) + " "
	}
	viewer, operator, nobody := as("vera", "isthmus-viewers"), as("olaf", "isthmus-operators"), as("nora")
	op.does(t, "isthmus init --network west --trust-domain cluster.local --apply --context test"+operator)

	broken, err := c.CoreV1().Pods(system).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-gateway-1", Labels: map[string]string{"app.kubernetes.io/name": "isthmus-gateway"}},
		Spec: corev1.PodSpec{ServiceAccountName: "gateway", Containers: []corev1.Container{{Name: "gateway", Image: "localhost/isthmus-gateway:v1"}}}}, metav1.CreateOptions{})
	if err == nil {
		broken.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "gateway", Image: "localhost/isthmus-gateway:v1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}}}
		_, err = c.CoreV1().Pods(system).UpdateStatus(t.Context(), broken, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, host := range map[string]bool{"on-its-node": true, "on-the-pod-network": false} {
		if _, err := c.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"istio.io/dataplane-mode": "ambient"}},
			Spec: corev1.PodSpec{HostNetwork: host, Containers: []corev1.Container{{Name: "app", Image: "localhost/app:v1"}}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const leftOut = "pod default/on-its-node\n"
	const why = `isthmus-gateway-1: ImagePullBackOff: image "localhost/isthmus-gateway:v1": not found`
	out, code := op.shell(t, "isthmus check --contexts test"+viewer)
	if refused := finding(out, "ISTH-116"); code != 1 || strings.Count(refused, "may not") != 1 || !strings.Contains(refused, `"vera" may not get secrets in namespace isthmus-system: not checked: ISTH-102`) || !strings.Contains(out, why) || !strings.Contains(out, "✓ ISTH-113") || !strings.Contains(out, "✓ ISTH-114") {
		t.Errorf("for a viewer check exits with %d:\n%s", code, out)
	}
	if found := finding(out, "ISTH-117"); !strings.Contains(found, leftOut) || strings.Contains(found, "on-the-pod-network") {
		t.Errorf("of pods that are left out it says %q, want %q:\n%s", found, leftOut, out)
	}
	out, code = op.shell(t, "isthmus check --contexts test"+operator)
	if code != 1 || !strings.Contains(out, "✓ ISTH-116") || !strings.Contains(out, "✓ ISTH-102") || !strings.Contains(out, why) {
		t.Errorf("for an operator check exits with %d:\n%s", code, out)
	}
	if out, code = op.shell(t, "isthmus check --contexts test"+nobody); code != 0 || !strings.Contains(finding(out, "ISTH-116"), `"nora" may not get configmaps`) {
		t.Errorf("for nobody check exits with %d:\n%s", code, out)
	}

	op.does(t, "isthmus init --network east --trust-domain east.local >east.yaml && sed -n '/card.yaml/,/^---/p' east.yaml | sed '1d;/^---/d;s/^    //' >east.card")
	op.does(t, "isthmus link --contexts test east.card --apply"+operator)
	if n := c.known(t); len(n) != 1 || n[0].Name != "east" {
		t.Errorf("linked by an operator it knows %+v", n)
	}
	op.does(t, "isthmus link --contexts test east.card --apply"+operator) // what is there is patched, or left
	if out, code := op.shell(t, "isthmus link --contexts test east.card --apply"+viewer); code == 0 && strings.Contains(out, "configured") {
		t.Errorf("a viewer links: %s", out)
	}
}
