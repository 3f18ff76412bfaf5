package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

func TestCheckLevelsOfPathFaults(t *testing.T) {
	well := &answer.Path{Exchanges: 300, There: answer.Way{Segments: 600, PacketBytes: 1500}, Back: answer.Way{Segments: 300, PacketBytes: 1500}}
	lossy := &answer.Path{Exchanges: 300, There: answer.Way{Segments: 600, Lost: 30}, Congestion: "bbr"}
	narrow := &answer.Path{There: answer.Way{PacketBytes: 1300, Dropped: true}, MaxSegment: 1260}
	for name, c := range map[string]struct {
		tried   answer.Tried
		tunnels string // level of ISTH-308
		paths   string // of ISTH-314. Empty: it is not printed
		follows string // of ISTH-308
		remedy  string
		seen    string
	}{
		"a good path":              {answer.Tried{Connected: true, Path: well}, checkWell, checkWell, "", "", "packets of 1500 bytes pass to it"},
		"lost packets":             {answer.Tried{Connected: true, Path: lossy}, checkWell, checkWarning, "", "find the link that loses packets", "lost to it 30 of 600"},
		"dropped, no tunnel":       {answer.Tried{Connected: true, Error: "TLS handshake", Path: narrow}, checkBad, checkBad, "ISTH-314", "set lines.maxSegment: 1260 on gateways and node proxies", ""},
		"no TCP connection":        {answer.Tried{Error: "connection refused"}, checkBad, "", "", "", ""},
		"certificate not accepted": {answer.Tried{Connected: true, Error: "certificate"}, checkBad, "", "", "", ""},
		"no time":                  {answer.Tried{Connected: true, PathError: "other paths took all of 20s"}, checkWell, checkWell, "", "", "west at 192.0.2.1:15008: not measured: other paths took all of 20s"},
	} {
		t.Run(name, func(t *testing.T) {
			c.tried.Network, c.tried.Address = "west", "192.0.2.1:15008"
			var all checkup
			all.reached("gateway", &answer.Reach{Tried: []answer.Tried{c.tried}})
			all.sort()
			get := func(code string) checked {
				if i := slices.IndexFunc(all.all, func(x checked) bool { return x.Code == code }); i >= 0 {
					return all.all[i]
				}
				return checked{}
			}
			tunnels, paths := get("ISTH-308"), get("ISTH-314")
			if tunnels.Level != c.tunnels || tunnels.Follows != c.follows || paths.Level != c.paths || !strings.Contains(paths.Remedy, c.remedy) || !strings.Contains(strings.Join(paths.Seen, "\n"), c.seen) {
				t.Errorf("%+v\n%+v\nwant levels %q and %q, remedy %q, seen %q", tunnels, paths, c.tunnels, c.paths, c.remedy, c.seen)
			}
		})
	}
}

func TestCheckPathNeedsGateways(t *testing.T) {
	if code, _, stderr := isthmus(t, "check", "--path", "west", "--config", "gateway=x.yaml"); code != exitUsage || !strings.Contains(stderr, "--path measures from gateways") {
		t.Errorf("%d, %q; want what is missing", code, stderr)
	}
}
