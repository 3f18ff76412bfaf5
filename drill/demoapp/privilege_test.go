package demoapp

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Kernels differ in who may attach a socket filter; refusing works for
// everybody. As root the test runs once more as somebody else.
func TestRefuseAndHealWithoutPrivileges(t *testing.T) {
	if os.Geteuid() == 0 {
		c := exec.Command("/proc/self/exe")
		c.Args = []string{os.Args[0], "-test.run=^" + t.Name() + "$", "-test.count=1"}
		c.Dir = "/"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		return
	}
	a, addr := start(t, Request)
	if err := a.Refuse(t.Context(), addr.Port()); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, addr, 5*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial while it refuses: %v, want ECONNREFUSED", err)
	}
	if err := a.Heal(t.Context(), addr.Port()); err != nil {
		t.Fatal(err)
	}
	c, err := dial(t, addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hello(c, "1", 10*time.Second); err != nil {
		t.Errorf("after healing: %v", err)
	}
}
