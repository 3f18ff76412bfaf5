package hbone

import "testing"

func TestSplitAuthority(t *testing.T) {
	for _, c := range []struct {
		in, host string
		port     uint16
	}{
		{"10.0.0.1:80", "10.0.0.1", 80}, {"[fd00::1]:15008", "fd00::1", 15008}, {"a.b.svc:1", "a.b.svc", 1},
		{"", "", 0}, {":80", "", 0}, {"a", "", 0}, {"a:0", "", 0}, {"a:99999", "", 0}, {"a:b", "", 0}, {"a:1:2", "", 0},
		{"x/y:1", "", 0}, {"u@x:1", "", 0}, {"[a]b:1", "", 0}, {"a b:1", "", 0}, {"a:-1", "", 0}, {"a:+1", "", 0},
	} {
		host, port, err := SplitAuthority(c.in)
		if host != c.host || port != c.port || (err == nil) != (c.port != 0) {
			t.Errorf("%q: got %q %d %v, want %q %d", c.in, host, port, err, c.host, c.port)
		}
	}
}
