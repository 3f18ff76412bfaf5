//go:build linux

package cniinstall

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Whoever may read and write a configuration goes on to, of a list that was made of one as well.
func TestAConfigurationKeepsItsOwner(t *testing.T) {
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 { // only root gives files to others
		uid, gid = 1000, 1001
	}
	n := newNode(t, map[string]string{"10-pods.conf": single, "20-pods.conflist": main})
	owned := func(name string) {
		t.Helper()
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(n.ConfDir, name), &st))
		if int(st.Uid) != uid || int(st.Gid) != gid || st.Mode&0o777 != 0o640 {
			t.Errorf("%s is of %d:%d, mode %o; want %d:%d, 640", name, st.Uid, st.Gid, st.Mode&0o777, uid, gid)
		}
	}
	for _, name := range n.files(t) {
		must(t, os.Chown(filepath.Join(n.ConfDir, name), uid, gid))
		must(t, os.Chmod(filepath.Join(n.ConfDir, name), 0o640))
	}
	must(t, n.configure())
	owned("10-pods.conflist")
	must(t, n.unconfigure())
	owned("10-pods.conf")
	must(t, os.Remove(filepath.Join(n.ConfDir, "10-pods.conf")))
	must(t, n.configure())
	owned("20-pods.conflist")
	must(t, n.unconfigure())
	owned("20-pods.conflist")
}

// A container has no right to give files away: what is somebody else's is left as it is then, and said.
func TestAConfigurationWhoseOwnerCannotBeKeptIsLeft(t *testing.T) {
	runtime.LockOSThread() // and stays locked: the thread that has lost its right ends with the goroutine
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	must(t, unix.Capget(&header, &data[0]))
	data[0].Effective &^= 1 << unix.CAP_CHOWN
	must(t, unix.Capset(&header, &data[0]))
	n := newNode(t, map[string]string{"10-pods.conflist": main})
	c, err := open(filepath.Join(n.ConfDir, "10-pods.conflist"))
	must(t, err)
	defer c.close()
	c.stat.Uid += 4242
	if err := c.replace([]byte("another")); err == nil || !strings.Contains(err.Error(), "10-pods.conflist is of user ") || !strings.Contains(err.Error(), "and cannot be kept so: operation not permitted: make it one of user ") {
		t.Errorf("it is said as %v", err)
	}
	n.has(t, "10-pods.conflist", main, without, "10-pods.conflist")
}
