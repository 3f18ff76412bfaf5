package nodeproxy

import (
	"bytes"
	"testing"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// A linked network that changes again and again what it may not export does not fill the
// log of every node proxy.
func TestANetworkCannotFillTheLogByWhatItExports(t *testing.T) {
	w := newToldWorld(t, "")
	var log bytes.Buffer
	w.log = zerolog.New(&log)
	for i := range 1000 {
		w.proven.offer(shopName, shopExport(func(e *record.Export) {
			if e.Identities = append(e.Identities, accountIn("payments", "pay")); i%2 == 1 {
				e.Identities = []spiffeid.ID{accountIn("payments", "pay")}
			}
		}))
		w.update(shopName)
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n > 100 {
		t.Errorf("1000 changes of one export within a moment: %d lines", n)
	}
}
