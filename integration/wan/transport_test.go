//go:build linux

package wan

import (
	"fmt"
	"testing"
	"time"
)

// archive is a service that has transfers only.
var archive = path{"archive", "client-ours", "shop", "archive"}

// The figures of TCP and QUIC in docs/lines.md: messages to one service beside a transfer to another one, on hosts with bbr.
func TestSmallMessagesByTransport(t *testing.T) {
	need(t)
	notShort(t)
	t.Cleanup(func() { set(t, withLines) })
	congestion(t, "bbr")
	for _, loss := range losses(t, 0, 0.001, 0.01, 0.03) {
		for _, pause := range []time.Duration{busyPause, pacedPause} {
			t.Run(fmt.Sprintf("loss %g, a message every %v", loss, pause), func(t *testing.T) {
				here.link.Set(busyLine(loss))
				defer here.link.Set(line)
				by := map[string]besideBulk{}
				for _, a := range []arm{overTCP, overQUIC} {
					set(t, a)
					b := measure(t, archive, double, pause)
					t.Logf("%-5s %v", a.name, b)
					if b.failed > 0 {
						t.Errorf("%s: %d connections failed", a.name, b.failed)
					}
					by[a.name] = b
				}
				tcp, quic := by[overTCP.name], by[overQUIC.name]
				t.Logf("QUIC to TCP: bulk %.2f, p90 %.2f, p99 %.2f", quic.bulk/tcp.bulk, quic.p90.Seconds()/tcp.p90.Seconds(), quic.p99.Seconds()/tcp.p99.Seconds())
				if loss >= 0.01 && (quic.p90 > tcp.p90 || quic.bulk < 0.75*tcp.bulk) {
					t.Errorf("with %g loss, QUIC is slower than TCP", loss)
				}
			})
		}
	}
}
