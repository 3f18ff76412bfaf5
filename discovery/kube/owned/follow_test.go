package owned

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
)

// An API server that says that it has ServiceImports and has none of that kind, as one that is being
// rolled, or whose definition is on its way out, is asked with pauses.
func TestAKindThatIsSaidToBeThereAndIsNotIsAskedForWithPauses(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/v1beta1") {
			json.NewEncoder(w).Encode(map[string]any{"kind": "APIResourceList", "groupVersion": group + "/v1beta1",
				"resources": []any{map[string]any{"name": "serviceimports", "kind": "ServiceImport"}, map[string]any{"name": "serviceexports", "kind": "ServiceExport"}}})
			return
		}
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "the server could not find the requested resource"})
	}))
	defer server.Close()
	c := clientOf(t, server.URL)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	c.Imports().Run(ctx)
	if n := asked.Load(); n > 30 {
		t.Errorf("%d requests in 3 s", n)
	}
}

// clientOf is a client of the API server at url.
func clientOf(t *testing.T, url string) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: %q}}], contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}]}", url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(kube.Config{Kubeconfig: path}, "x", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Of a right that was taken away and given back nothing is left to be told. client-go asks by a
// watch that tells all objects, lists if that is refused, and begins with the watch again.
func TestARightThatIsGivenBackIsMissedNoLonger(t *testing.T) {
	var allowed atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/v1beta1"):
			json.NewEncoder(w).Encode(map[string]any{"kind": "APIResourceList", "groupVersion": group + "/v1beta1",
				"resources": []any{map[string]any{"name": "serviceimports", "kind": "ServiceImport"}}})
		case allowed.Load() && r.URL.Query().Get("watch") != "":
			json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": "ServiceImport", "apiVersion": group + "/v1beta1",
				"metadata": map[string]any{"resourceVersion": "7", "annotations": map[string]any{"k8s.io/initial-events-end": "true"}}}})
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusForbidden)
			json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": `serviceimports is forbidden: User "x" cannot list resource "serviceimports"`})
		}
	}))
	defer server.Close()
	c := clientOf(t, server.URL)
	imports := c.Imports()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); imports.Run(ctx) }()
	defer func() { cancel(); <-done; server.CloseClientConnections() }()
	eventually(t, "the right to list is missed", func() bool { return c.Failing()["list serviceimports"] != "" })
	allowed.Store(true)
	eventually(t, "nothing is missed any more", func() bool {
		synced, _, _ := imports.Status()
		return synced && len(c.Failing()) == 0
	})
}

// So is it of namespaces, and of the nodes and pods that start-up taints are for.
func TestARightToCoreObjectsThatIsGivenBackIsMissedNoLonger(t *testing.T) {
	var allowed atomic.Bool
	kinds := map[string][2]string{"namespaces": {"PartialObjectMetadata", "meta.k8s.io/v1"}, "nodes": {"Node", "v1"}, "pods": {"Pod", "v1"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		w.Header().Set("Content-Type", "application/json")
		if allowed.Load() && r.URL.Query().Get("watch") != "" {
			json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": kinds[resource][0], "apiVersion": kinds[resource][1],
				"metadata": map[string]any{"resourceVersion": "7", "annotations": map[string]any{"k8s.io/initial-events-end": "true"}}}})
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		w.WriteHeader(http.StatusForbidden)
		json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": resource + ` is forbidden: User "x" cannot list resource`})
	}))
	defer server.Close()
	c := clientOf(t, server.URL)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Namespaces().Run(ctx) })
	running.Go(func() { c.Startup("isthmus.io/agent-not-ready", "x", "nodeproxy").Run(ctx) })
	defer func() { cancel(); running.Wait(); server.CloseClientConnections() }()
	for _, what := range []string{"list namespaces", "list nodes", "list pods of x"} {
		eventually(t, what+" is missed", func() bool { return c.Failing()[what] != "" })
	}
	allowed.Store(true)
	eventually(t, "nothing is missed any more", func() bool { return len(c.Failing()) == 0 })
}

func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	patience := time.After(30 * time.Second)
	for !ask() {
		select {
		case <-patience:
			t.Fatal(what + ": not within 30 s")
		case <-time.After(5 * time.Millisecond):
		}
	}
}
