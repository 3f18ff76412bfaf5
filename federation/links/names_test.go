package links

import "testing"

func TestAllNamesOfAServiceLeadToItsHostname(t *testing.T) {
	for host, want := range map[string]string{
		"web.shop.svc.cluster.local":      "web.shop.svc.cluster.local",
		"Web.Shop.mesh.internal.":         "web.shop.svc.cluster.local",
		"web.shop.svc.clusterset.local":   "web.shop.svc.cluster.local",
		"a.web.shop.svc.clusterset.local": "a.web.shop.svc.clusterset.local",
		"api.example.com":                 "api.example.com",
	} {
		if got, ok := Canonical(host); got != want || !ok {
			t.Errorf("Canonical(%q) = %q, %v; want %q", host, got, ok, want)
		}
	}
	for _, host := range []string{"", "web", "web shop.svc", "wéb.shop.mesh.internal"} {
		if got, ok := Canonical(host); ok {
			t.Errorf("Canonical(%q) = %q; want none", host, got)
		}
	}
}
