package controller

import (
	"testing"
	"time"
)

func TestGatewayLossIsReportedAfterGrace(t *testing.T) {
	var a attached
	at := time.Unix(0, 0)
	for i, c := range []struct {
		connected     bool
		pass          time.Duration
		gone, changed bool
	}{
		{true, 0, false, false},
		{false, time.Second, false, false},
		{false, gatewayGrace - time.Second, false, false},
		{true, time.Second, false, false},
		{false, time.Second, false, false},
		{false, gatewayGrace, true, true},
		{false, time.Hour, true, false},
		{true, 0, false, true},
		{true, time.Second, false, false},
	} {
		at = at.Add(c.pass)
		if changed := a.note(c.connected, at); changed != c.changed || a.gone != c.gone {
			t.Errorf("step %d: gone %v, changed %v; want %v, %v", i, a.gone, changed, c.gone, c.changed)
		}
	}
}
