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
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: %q}}], contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}]}", server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(kube.Config{Kubeconfig: path}, "x", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	c.Imports().Run(ctx)
	if n := asked.Load(); n > 30 {
		t.Errorf("%d requests in 3 s", n)
	}
}
