package pods

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// That a pod is left to another node proxy is how an upgrade goes; that it lasts is said, once in the log, and as a problem as
// long as it does, whether this process is in the pod as well or not.
func TestAPodThatIsLeftToAnotherNodeProxyForLongIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &Set{p: Parent{Log: zerolog.New(&log)}, cfg: Options{Drain: 10 * time.Second}, held: map[string]*Pod{"shop": {uid: "shop"}}, failing: map[string]*lack{}}
		c.fail("cart", errYounger)
		itself := func(uid string) string { return uid }
		pass := func(lasts time.Duration) (told int) {
			for end := time.Now().Add(lasts); !time.Now().After(end); time.Sleep(time.Second) {
				c.yields("shop", true)
				c.yields("cart", true)
			}
			for _, problem := range c.Lacking(itself) {
				if strings.Contains(problem, yieldRemedy) {
					told++
				}
			}
			return told
		}
		said := func() int { return strings.Count(log.String(), yieldRemedy) }
		if told := pass(9 * time.Second); told != 0 || said() != 0 {
			t.Errorf("within timeouts.drain there are %d problems and %d lines", told, said())
		}
		if told := pass(time.Minute); told != 2 || said() != 2 {
			t.Errorf("for a minute: %d problems and %d lines; want one each of both pods: %v", told, said(), c.Lacking(itself))
		}
		c.yields("shop", false)
		c.forget(map[string]*mesh.Workload{"shop": {}})
		if got := c.Lacking(itself); len(got) != 0 || len(c.yielded) != 0 {
			t.Errorf("when it is over, and the other pod gone: %v", got)
		}
		c.yields("shop", true)
		if got := c.Lacking(itself); len(got) != 0 {
			t.Errorf("when that begins once more: %v", got)
		}
	})
}
