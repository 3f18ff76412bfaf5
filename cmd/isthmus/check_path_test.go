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

func TestCheckLevelsOfUDPFaults(t *testing.T) {
	const here, there = "192.0.2.1:15008", "192.0.2.2:15008"
	well := answer.Tried{Connected: true, Address: here, Path: &answer.Path{}, UDP: []*answer.UDP{{HandshakeMS: 81}}}
	silent := answer.Tried{Connected: true, Address: there, Path: &answer.Path{}, UDP: []*answer.UDP{{Failure: answer.UDPSilent, Error: "no response in 3s", PacketBytes: 1228}}}
	busy := answer.Tried{Connected: true, Address: here, Path: &answer.Path{}, UDPError: "another check is running"}
	late := answer.Tried{Connected: true, Address: here, PathError: "other paths took all of 20s"}
	down := answer.Tried{Address: here, Error: "connection refused"}
	one := answer.Tried{Connected: true, Address: there, Path: &answer.Path{}, UDP: []*answer.UDP{silent.UDP[0], {Address: "192.0.2.3:443", HandshakeMS: 81}}, UDPError: "resolve gw.example.com: the name has no addresses"}
	const found, remedy = `network "west" at 192.0.2.2:15008: UDP to it is blocked or dropped`, "allow UDP port 15008 in firewalls"
	for name, c := range map[string]struct {
		transport           string
		tried               []answer.Tried
		level               string // empty: ISTH-315 is not printed
		found, remedy, seen string
	}{
		"tcp":                       {"", []answer.Tried{{Connected: true, Address: here, Path: &answer.Path{}}}, "", "", "", ""},
		"connects":                  {"quic", []answer.Tried{well}, checkWell, "", "", "west at 192.0.2.1:15008: UDP passes both ways, QUIC handshake in 81.0 ms"},
		"blocked with quic":         {"quic", []answer.Tried{silent}, checkBad, found, remedy, ""},
		"blocked with auto":         {"auto", []answer.Tried{silent}, checkWarning, found, remedy, ""},
		"blocked at one of two":     {"quic", []answer.Tried{well, silent}, checkWarning, found, remedy, "west at 192.0.2.1:15008: UDP passes"},
		"blocked at one of its own": {"quic", []answer.Tried{one}, checkWarning, found, remedy, "west at 192.0.2.2:15008: UDP passes both ways at 192.0.2.3:443"},
		"name without address":      {"quic", []answer.Tried{one}, checkWarning, found, remedy, "UDP not checked: resolve gw.example.com"},
		"no tunnel":                 {"quic", []answer.Tried{down}, "", "", "", ""},
		"no tunnel to one, blocked": {"quic", []answer.Tried{down, silent}, checkBad, found, remedy, ""},
		"another check is running":  {"quic", []answer.Tried{busy}, checkWell, "", "", "UDP not checked: another check is running"},
		"no time":                   {"quic", []answer.Tried{late}, checkWell, "", "", "UDP not checked: other paths took all of 20s"},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range c.tried {
				c.tried[i].Network, c.tried[i].Transport = "west", c.transport
			}
			var all checkup
			all.reached("gateway", &answer.Reach{Tried: append(c.tried, answer.Tried{Network: "north", Transport: "quic", Error: "no address"})})
			var got checked
			for _, x := range all.all {
				if x.Code == "ISTH-315" {
					got = x
				}
			}
			if got.Level != c.level || !strings.Contains(got.Found, c.found) || !strings.Contains(got.Remedy, c.remedy) || !strings.Contains(strings.Join(got.Seen, "\n"), c.seen) {
				t.Errorf("%+v, want level %q, %q, remedy %q and seen %q", got, c.level, c.found, c.remedy, c.seen)
			}
		})
	}
}

func TestCheckPathNeedsGateways(t *testing.T) {
	if code, _, stderr := isthmus(t, "check", "--path", "west", "--config", "gateway=x.yaml"); code != exitUsage || !strings.Contains(stderr, "--path measures from gateways") {
		t.Errorf("%d, %q; want what is missing", code, stderr)
	}
}
