package localfault

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestTimedOutWithFullConnectionTable(t *testing.T) {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	_, timeout := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:9")
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	defer func(was string) { conntrack = was }(conntrack)
	for _, c := range []struct {
		count, max string
		full       bool
	}{
		{"0", "262144", false}, {"949", "1000", false}, {"950", "1000", true}, {"1000", "1000", true}, {"1001", "1000", true},
		{"5", "0", false}, {"", "", false}, {"7", "", false}, {"", "7", false}, {"x", "7", false}, {"4294967295", "4294967295", true},
	} {
		conntrack = t.TempDir()
		for name, text := range map[string]string{"nf_conntrack_count": c.count, "nf_conntrack_max": c.max} {
			if text == "" {
				continue // no netfilter
			}
			if err := os.WriteFile(filepath.Join(conntrack, name), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := TimedOut(timeout); Is(err) != c.full || err == nil {
			t.Errorf("with %q of %q entries Is(%v) = %t, want %t", c.count, c.max, err, !c.full, c.full)
		}
		if err := TimedOut(refused); Is(err) {
			t.Errorf("with %q of %q entries a refused dial is local", c.count, c.max)
		}
	}
	if err := TimedOut(nil); err != nil {
		t.Errorf("TimedOut(nil) = %v", err)
	}
}
