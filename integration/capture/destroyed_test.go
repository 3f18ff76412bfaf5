//go:build linux

package capture

import (
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// Somebody who may change the network of a pod ends all sockets in it (ss -K), those of its node proxy among them: that listens
// again, as its rules come back that were flushed.
func TestListenersThatWereDestroyedComeBack(t *testing.T) {
	t.Parallel()
	w := newWorldAll(t)
	must(t, w.In("shop-1", func() error {
		out, err := exec.Command("ss", "-K", "-tlnH", "sport", ">=", ":15000").CombinedOutput()
		if err == nil && len(out) == 0 {
			err = fmt.Errorf("nothing listens, or this kernel cannot end it")
		}
		return err
	}))
	w.until(t, 5*time.Second, "shop-1", hello+":80", answered)
	w.until(t, time.Second, "gateway", addresses["shop-1"]+":8080", answered)
	w.until(t, 5*time.Second, "shop-2", addresses["shop-1"]+":8080", answered) // by a tunnel
}
