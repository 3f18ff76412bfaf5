//go:build linux

package capture

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// A NetworkPolicy keeps shop-1 from shop-2. Whatever it tries, shop-2 is out for shop-1 alone: other pods of the node call it as
// before, and when the policy is gone shop-1 does too.
func TestWhatOnePodDoesNotReachIsOutForThatPodAlone(t *testing.T) {
	t.Parallel()
	needsNft(t)
	w := newWorld(t)
	calls := func(pod string, n int) (to map[string]int) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		to = map[string]int{}
		for range n {
			wg.Go(func() {
				text, err := w.call(pod, local+":80")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					to[err.Error()]++
				} else {
					to[strings.Fields(text)[0]]++
				}
			})
		}
		wg.Wait()
		return to
	}
	even := func(pod string) {
		t.Helper()
		if got := calls(pod, 100); got["shop-1"] < 25 || got["shop-2"] < 25 || len(got) != 2 {
			t.Errorf("%s calls %v; want both pods, and nothing else", pod, got)
		}
	}
	w.until(t, 20*time.Second, "shop-1", local+":80", answered)
	even("shop-1")
	even("shop-2")

	nft := func(commands string) {
		t.Helper()
		_, err := w.Nft("shop-1", commands)
		must(t, err)
	}
	nft("add table inet kept\nadd chain inet kept out { type filter hook output priority 0; }\nadd rule inet kept out ip daddr " + addresses["shop-2"] + " tcp dport 15008 drop\n")
	w.until(t, 20*time.Second, "shop-1", local+":80", func(string, error) bool {
		got := calls("shop-1", 20)
		return got["shop-1"] == 20
	})
	even("shop-2")
	if w.said(t, "node-a", `"from":"shop-1"`) == 0 {
		t.Error("the log does not say for whom alone shop-2 is out")
	}
	nft("delete table inet kept\n")
	w.until(t, 20*time.Second, "shop-1", local+":80", func(string, error) bool { return calls("shop-1", 20)["shop-2"] > 4 })
	even("shop-1")
}
