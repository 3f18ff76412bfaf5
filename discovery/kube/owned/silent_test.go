package owned

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
)

// silent is a kubeconfig of an API server that takes connections and says nothing.
func silent(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: \"http://%s\"}}], contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}]}", l.Addr())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhatFollowsEndsWithItsContext(t *testing.T) {
	c, err := Open(kube.Config{Kubeconfig: silent(t)}, "x", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	s, err := kube.Config{Kubeconfig: silent(t)}.Open("west", nil, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	for what, run := range map[string]func(context.Context){"ServiceImports": c.Imports().Run, "the cluster": s.Run} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); run(ctx) }()
		time.Sleep(200 * time.Millisecond)
		began := time.Now()
		cancel()
		<-done
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s is followed for %v after the end", what, took)
		}
	}
}
