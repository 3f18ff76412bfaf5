//go:build linux

package podns

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that has no descriptor left when it first wants to know where it is finds it out later.
func TestWhereThisProcessIsIsFoundOutLater(t *testing.T) {
	const child = "PODNS_TEST_OWN"
	if os.Getenv(child) == "" { // by then another test has found it out
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}, nil))
	_, err := Own()
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil))
	if !Lacking(err) {
		t.Fatalf("without descriptors: %v", err)
	}
	if _, err := Own(); err != nil {
		t.Errorf("with descriptors again: %v", err)
	}
}
