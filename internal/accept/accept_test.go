package accept

import (
	"bytes"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestAFailingLoopSlowsDownAndIsTerse(t *testing.T) {
	var out bytes.Buffer
	log := zerolog.New(&out)
	var f Failures
	now := time.Unix(1000, 0)
	end, n := now.Add(time.Minute), 0
	for ; now.Before(end); n++ {
		now = now.Add(f.Failed(log, syscall.EMFILE, now))
	}
	if lines := strings.Count(out.String(), "accept failed"); lines < 5 || lines > 7 {
		t.Errorf("%d lines in a minute, want one in ten seconds:\n%s", lines, out.String())
	}
	if n > 150 {
		t.Errorf("%d attempts in a minute, want about one a second", n)
	}
	f.Succeeded()
	if d := f.Failed(log, syscall.EMFILE, now); d > pauses.First {
		t.Errorf("the first pause after a success is %v, want at most %v", d, pauses.First)
	}
}
