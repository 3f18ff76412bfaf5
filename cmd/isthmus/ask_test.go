package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
)

// The environment's proxy sees no question to an admin port. The environment is read
// once in a process, so the question is asked in another.
func TestQuestionsGoPastTheProxy(t *testing.T) {
	const variable = "TEST_ASK"
	if address := os.Getenv(variable); address != "" {
		ask(t.Context(), address, "/status", nil, &struct{}{}) // nobody is there
		return
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the proxy was asked for %s", r.URL) }))
	defer proxy.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"=isthmus.invalid:15000", "HTTP_PROXY="+proxy.URL, "NO_PROXY=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
