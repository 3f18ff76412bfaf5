package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// report is drill.json as its documentation describes it to others.
type report struct {
	Scenario string `json:"scenario"`
	Seed     uint64 `json:"seed"`
	Verdict  string `json:"verdict"`
	Arms     []struct {
		Name      string             `json:"name"`
		Attempts  int                `json:"attempts"`
		Failed    int                `json:"failed"`
		Cut       int                `json:"cut"`
		Latency   map[string]float64 `json:"latency_ms"`
		ToSick    *int               `json:"to_sick_after_1s"`
		Collat    *int               `json:"collateral_ejections"`
		Endpoints []struct {
			ID, Network string
			Port        any
			Answered    int
		} `json:"endpoints"`
	} `json:"arms"`
	Assertions []struct {
		Arm, Name string
		Bound     any
		Observed  any
		Held      bool
	} `json:"assertions"`
}

// drill runs one scenario and returns its exit code, report and output.
func drill(t *testing.T, args ...string) (int, report, string) {
	t.Helper()
	return drillStopped(t, 0, args...)
}

// drillStopped is drill, where the drill's own process stands still for 1.5 s in the first
// runs of arms, as on a machine that is too busy.
func drillStopped(t *testing.T, runs int, args ...string) (int, report, string) {
	t.Helper()
	out := t.TempDir()
	cmd := exec.Command(filepath.Join(bin, "isthmus"), append([]string{"drill", "--plain", "--out", out}, args...)...)
	printed, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer printed.Close()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for lines := bufio.NewScanner(printed); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "traffic begins") && runs > 0 {
			runs--
			time.Sleep(2 * time.Second)
			cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(1500 * time.Millisecond)
			cmd.Process.Signal(syscall.SIGCONT)
		}
	}
	err = cmd.Wait()
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	kept, _ := filepath.Glob(filepath.Join(out, "arm-*"))
	for _, dir := range kept {
		if !strings.Contains(text.String(), dir) {
			t.Errorf("%s is left, and the output does not name it\n%s", dir, text.String())
		}
	}
	var r report
	if data, err := os.ReadFile(filepath.Join(out, "drill.json")); err == nil {
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatalf("drill.json: %v", err)
		}
		html, err := os.ReadFile(filepath.Join(out, "report.html"))
		if err != nil || len(html) < 10_000 {
			t.Errorf("report.html: %v, %d bytes", err, len(html))
		}
	}
	return code, r, text.String()
}

// An arm runs once more where the machine was too busy. If it is too busy again, that is the
// drill's last line.
func TestDisturbedArmRunsTwiceAtMost(t *testing.T) {
	code, r, text := drillStopped(t, 2, "testdata/must-break.yaml")
	if again := strings.Count(text, "the machine was too busy; arm blind runs once more"); code != 4 || r.Verdict != "inconclusive" || again != 1 || len(r.Arms) != 1 {
		t.Errorf("the drill stood still in both runs: exit %d, verdict %q, %d arms, run once more %d times; want 4, inconclusive, 1 and 1\n%s", code, r.Verdict, len(r.Arms), again, text)
	}
	if !strings.HasSuffix(strings.TrimSpace(text), "inconclusive: the machine was too busy, run it again") {
		t.Errorf("the last line does not say to run it again\n%s", text)
	}
}

func TestMostPodsSickBehindOneGatewayFailsNothing(t *testing.T) {
	code, r, text := drill(t, "testdata/most-sick.yaml", "--seed", "29")
	if code != 0 || r.Verdict != "held" || r.Seed != 29 {
		t.Fatalf("exit %d, verdict %q, seed %d; want 0, held, 29\n%s", code, r.Verdict, r.Seed, text)
	}
	arm := r.Arms[0]
	if arm.Attempts < 1000 || arm.ToSick == nil || arm.Collat == nil || len(arm.Endpoints) != 26 {
		t.Errorf("arm %+v: want over 1000 attempts, both counts, and 13 pods with 2 ports each", arm)
	}
	answered := 0
	for _, e := range arm.Endpoints {
		if e.ID == "" || e.Network == "" || e.Port == nil {
			t.Errorf("endpoint %+v lacks a field", e)
		}
		answered += e.Answered
	}
	if answered != arm.Attempts-arm.Failed {
		t.Errorf("endpoints answered %d of %d successful connections", answered, arm.Attempts-arm.Failed)
	}
	for _, q := range []string{"p50", "p99", "max"} {
		if arm.Latency[q] <= 0 {
			t.Errorf("latency_ms.%s = %v", q, arm.Latency[q])
		}
	}
}

func TestABrokenAssertionIsReportedAsBroken(t *testing.T) {
	code, r, text := drill(t, "testdata/must-break.yaml")
	if code != 1 || r.Verdict != "broken" || r.Arms[0].Failed == 0 {
		t.Fatalf("exit %d, verdict %q; want 1 and broken: without retry refused connections fail\n%s", code, r.Verdict, text)
	}
	broken := 0
	for _, a := range r.Assertions {
		if !a.Held {
			broken++
		}
	}
	if broken != 1 {
		t.Errorf("%d assertions are broken, want exactly one\n%s", broken, text)
	}
}

// With the kernel's word on sockets, and by connects alone, in one run.
func TestTheWitnessSeesBeforeUsersDo(t *testing.T) {
	code, r, text := drill(t, "testdata/seen-first.yaml")
	if code != 0 || r.Verdict != "held" {
		t.Fatalf("exit %d, verdict %q; want 0 and held\n%s", code, r.Verdict, text)
	}
	for _, a := range r.Assertions {
		t.Logf("%s: %s: %v", a.Arm, a.Name, a.Observed)
	}
}

// Nothing fails, because nobody came near the fault: that must not look like
// a success.
func TestAFaultThatNobodyMeetsIsInconclusive(t *testing.T) {
	code, r, text := drill(t, "testdata/local-pods.yaml")
	if code != 4 || r.Verdict != "inconclusive" {
		t.Fatalf("exit %d, verdict %q; want 4 and inconclusive\n%s", code, r.Verdict, text)
	}
	for _, want := range []string{"fault sick: no client connection crossed it: clients prefer local pods", "were answered on their own network east", "trafficDistribution: Any"} {
		if !strings.Contains(text, want) {
			t.Errorf("not told: %q\n%s", want, text)
		}
	}
	if r.Arms[0].Failed != 0 {
		t.Errorf("%d connections failed, want none: there is another reason", r.Arms[0].Failed)
	}
}

func TestMistakesInAScenarioAreUsageErrors(t *testing.T) {
	good, err := os.ReadFile("testdata/must-break.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ replace, with, want string }{
		{"duration: 5s", "duraton: 5s", `did you mean "duration"`},
		{"kind: refuse", "kind: explode", "explode"},
		{"network: west, pods: 2", "network: nowhere, pods: 2", "nowhere"},
		{"metric: failed", "metric: failled", "failled"},
	} {
		path := filepath.Join(t.TempDir(), "bad.yaml")
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(good), c.replace, c.with)), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, text := drill(t, path); code != 2 || !strings.Contains(text, c.want) || !strings.Contains(text, "bad.yaml:") {
			t.Errorf("%s: exit %d, output %q; want 2, the line, and %q", c.with, code, text, c.want)
		}
	}
}
