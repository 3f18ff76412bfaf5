package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What kubectl says of a cluster that it cannot ask comes with the context and what to do.
func TestKubectlFailuresNameTheContextAndTheRemedy(t *testing.T) {
	for says, want := range map[string][]string{
		`error: context "w" does not exist`: {`context "w": the kubeconfig has no such context: did you mean "w1"?`},
		`Error from server (Forbidden): configmaps "isthmus-network" is forbidden: User "u" cannot get resource "configmaps"`: {`context "w": you have no right`, "docs/kubernetes/operator.yaml", `User "u"`},
		`error: You must be logged in to the server (Unauthorized)`:                                                           {`context "w": your credentials`, "log in"},
		`The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?`:                    {`context "w": its API server cannot be reached`, "10.0.0.1:6443"},
		`Unable to connect to the server: dial tcp: lookup api.example.com: no such host`:                                     {"cannot be reached", "api.example.com"},
		`Unable to connect to the server: tls: failed to verify certificate: x509: certificate signed by unknown authority`:   {"a certificate that the kubeconfig does not take"},
		`error: something else`: {"kubectl get configmap isthmus-network", "--context w: error: something else"},
	} {
		program := filepath.Join(t.TempDir(), "kubectl")
		script := "#!/bin/sh\ncase \"$*\" in 'config get-contexts'*) printf 'w1\\neast\\n' ;; *) echo '" + says + "' >&2; exit 1 ;; esac\n"
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		code, out, errs := isthmus(t, "link", "card", "--context", "w", "--kubectl", program)
		if code != exitStart || out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: exit %d, %q", says, code, errs)
		}
		wantIn(t, errs, want...)
	}
	program := filepath.Join(t.TempDir(), "none")
	code, _, errs := isthmus(t, "link", "card", "--kubectl", program)
	if code != exitStart {
		t.Errorf("exit %d", code)
	}
	wantIn(t, errs, "--kubectl "+program, "no such program", "install kubectl")
	empty := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(empty, []byte("#!/bin/sh\necho 'The connection to the server localhost:8080 was refused - did you specify the right host or port?' >&2; exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, _, errs = isthmus(t, "link", "card", "--kubectl", empty)
	wantIn(t, errs, "the kubeconfig's current context: there is none", "--context")
}
