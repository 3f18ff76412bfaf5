package nodeproxy

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/hbone"
)

func TestWhatTimedOutWhileWeWereLateIsNobodysFault(t *testing.T) {
	p := newProxy(DefaultConfig(), zerolog.Nop())
	defer p.stop()
	started := time.Now()
	for _, c := range []struct {
		err     error
		timeout bool
	}{
		{hbone.ErrConnectTimeout, true},
		{hbone.ErrSettingsTimeout, true},
		{hbone.ErrPingTimeout, true},
		{os.ErrDeadlineExceeded, true},
		{syscall.ECONNREFUSED, false},
		{errors.New("protocol error"), false},
	} {
		for _, late := range []bool{false, true} {
			p.late = func(since time.Time) bool { return late && since.Equal(started) }
			f := hopFailure(atGateway, hopOuter, fmt.Errorf("gateway west/gw-1: %w", c.err))
			p.excuse(f, started)
			if want := !(late && c.timeout); f.fault != want {
				t.Errorf("%v, late: %v: the gateway is blamed: %v, want %v", c.err, late, f.fault, want)
			}
		}
	}
	p.excuse(nil, started) // an attempt that succeeded
}
