package secretfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// On a read-only mount no user replaces a file, whatever the mode of its directory.
func TestReadAcceptsReadOnlyMount(t *testing.T) {
	netspace.NeedRoot(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "key.pem")
	if err := syscall.Mount("none", dir, "tmpfs", 0, "mode=0777"); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil {
		t.Error("a directory of mode 0777 is accepted")
	}
	if err := syscall.Mount("none", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatalf("remount: %v", err)
	}
	if _, err := Read(path); err != nil {
		t.Error(err)
	}
}
