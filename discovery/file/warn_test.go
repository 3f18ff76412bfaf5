package file

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
)

func TestAWarningIsLoggedOnceWhenItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := &Watcher{store: &discovery.Store{}, Log: zerolog.New(&out)}
		var mu sync.Mutex // what stands there by now is what Warn is told
		warnings := []string{"policy a selects no workload: there is x"}
		go w.Warn(t.Context(), PolicyInVain, func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(warnings)
		})
		say := func(list ...string) {
			mu.Lock()
			defer mu.Unlock()
			out.Reset()
			warnings = list
		}
		logs := func(when string, want ...string) {
			t.Helper()
			time.Sleep(2 * warnEvery)
			synctest.Wait()
			var got []string
			for line := range strings.Lines(out.String()) {
				got = append(got, strings.TrimSpace(line))
			}
			for i, text := range want {
				want[i] = `{"level":"warn","why":"` + text + `","message":"` + PolicyInVain + `"}`
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		logs("at first", "policy a selects no workload: there is x")
		say("policy a selects no workload: there are x and y", "3 more policies: mend those")
		logs("with another one", "3 more policies: mend those")
		say("policy a selects no workload: there are x and y", "4 more policies: mend those")
		logs("with more of the same")
		say()
		logs("when they have gone")
		say("policy a selects no workload: there is z")
		logs("when one has come back", "policy a selects no workload: there is z")
	})
}

func TestWarningsOfAFileNamePoliciesThatSelectNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	const text = `networks: [{name: east}]
workloads: [{uid: w-1, name: web, namespace: demo, network: east, node: n, addresses: [10.0.0.1], labels: {app: web}}]
policies:
  - {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: typo, namespace: demo}, spec: {selector: {matchLabels: {app: wbe}}}}
  - {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: well, namespace: demo}, spec: {selector: {matchLabels: {app: web}}}}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := Config{File: path}.Warnings()
	if len(got) != 1 || !strings.HasPrefix(got[0], "AuthorizationPolicy demo/typo selects no workload, and changes nothing: ") || !strings.Contains(got[0], "app=wbe (there is web)") {
		t.Errorf("warnings are %q, want one of demo/typo", got)
	}
	if got := (Config{}).Warnings(); got != nil {
		t.Errorf("without a file: %q", got)
	}
}
