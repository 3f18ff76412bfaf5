package wire

import (
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func TestMalformedFields(t *testing.T) {
	for field, bad := range map[[2]string]bool{
		{"te", "trailers"}: false, {"te", "gzip"}: true, {"connection", "close"}: true, {"keep-alive", ""}: true, {"upgrade", "x"}: true,
		{"x", " y"}: true, {"x", "y\t"}: true, {"x", ""}: false, {"x", "a b"}: false, {"upgrades", "x"}: false,
	} {
		got := Malformed(&http2.MetaHeadersFrame{Fields: []hpack.HeaderField{{Name: field[0], Value: field[1]}}})
		if (got != "") != bad {
			t.Errorf("%s: %q: %q", field[0], field[1], got)
		}
	}
}
