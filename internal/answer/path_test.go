package answer

import (
	"strings"
	"testing"
)

func TestPathFaultsNameRemedies(t *testing.T) {
	for _, c := range []struct {
		path *Path
		want []string // found and remedy of each
	}{
		{&Path{There: Way{Segments: 600, Lost: 1}, Back: Way{Segments: 300}, Congestion: "bbr"}, nil},
		{&Path{There: Way{Segments: 100, Lost: 1}, Congestion: "bbr"}, nil}, // one may be an accident
		{&Path{There: Way{Segments: 600, Lost: 3}, Congestion: "bbr"}, nil}, // half of a per cent
		{&Path{There: Way{PacketBytes: 1300, Dropped: true}, Back: Way{PacketBytes: 1300}, MaxSegment: 1260}, []string{
			"TCP connects, packets over 1300 bytes to it are dropped", "set lines.maxSegment: 1260 on gateways and node proxies, or fix the tunnel's MTU"}},
		{&Path{Back: Way{PacketBytes: 1300, Dropped: true}, MaxSegment: 1240}, []string{
			"TCP connects, packets over 1300 bytes from it are dropped", "set lines.maxSegment: 1240 on"}},
		{&Path{There: Way{Segments: 200, Lost: 10}, Congestion: "bbr"}, []string{"5 % of the packets to it are lost (10 of 200)", "by rate limits"}},
		{&Path{Back: Way{Segments: 150, Lost: 2}, Congestion: "cubic"}, []string{
			"1.3 % of the packets from it are lost (2 of 150)", "until then set lines.congestionControl: bbr on gateways and node proxies, and load the module tcp_bbr on their nodes (it is cubic)"}},
	} {
		var got []string
		for _, f := range c.path.Faults() {
			got = append(got, f.Found, f.Remedy)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%s: %q, want %q", c.path, got[i], c.want[i])
			}
		}
	}
}
