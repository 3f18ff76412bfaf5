package nodeproxy

import (
	"net"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// MeasureLines has node proxies take what info returns for what the kernel measured, until t ends.
func MeasureLines(t testing.TB, every time.Duration, info func() tcp.Info) {
	oldEvery, oldInfo := sampleEvery, infoOf
	t.Cleanup(func() { sampleEvery, infoOf = oldEvery, oldInfo })
	sampleEvery, infoOf = every, func(conn net.Conn) (tcp.Info, bool) { return info(), conn != nil }
}

// NamesOf is namesOf, for tests with gateways.
var NamesOf = (*Proxy).namesOf
