package pods

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A pod that serves its own files and does not answer costs the pods beside it a moment, once.
func TestAPodWhoseFilesHangDoesNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Set{}
		hung := make(chan struct{})
		hang := func(string) ([]byte, error) { <-hung; return []byte("late"), nil }
		began := time.Now()
		if _, err := c.readFile("a", resolvConf, hang); err == nil || !strings.Contains(err.Error(), "has not come within 250ms") || time.Since(began) != readPatience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		began = time.Now()
		if _, err := c.readFile("a", resolvConf, hang); err == nil || !strings.Contains(err.Error(), "an earlier read") || time.Since(began) != 0 {
			t.Errorf("again, after %v: %v", time.Since(began), err)
		}
		if b, err := c.readFile("b", resolvConf, func(string) ([]byte, error) { return []byte("text"), nil }); string(b) != "text" || err != nil {
			t.Errorf("another pod: %q, %v", b, err)
		}
		for i := range maxStuck + workAtOnce {
			c.readFile(fmt.Sprint(i), resolvConf, hang)
		}
		began = time.Now()
		if _, err := c.readFile("one more", resolvConf, hang); err == nil || !strings.Contains(err.Error(), "reads in other pods") || time.Since(began) != 0 || len(c.reading) != maxStuck+workAtOnce {
			t.Errorf("with %d that hang: %v", len(c.reading), err)
		}
		close(hung)
		synctest.Wait()
		if b, err := c.readFile("a", resolvConf, hang); string(b) != "late" || err != nil || len(c.reading) != 0 {
			t.Errorf("when it answers: %q, %v, %d reads", b, err, len(c.reading))
		}
	})
}
