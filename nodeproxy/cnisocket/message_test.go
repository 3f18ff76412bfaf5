package cnisocket

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	good := func() Request {
		return Request{Command: Add, Namespace: "demo", Name: "shop", UID: "u-1", Container: "c-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, WaitMS: 10}
	}
	for field, spoil := range map[string]func(*Request){
		"uid":          func(r *Request) { r.UID = "" },
		"container":    func(r *Request) { r.Container = "a b" },
		"command":      func(r *Request) { r.Command = "SET" },
		"name":         func(r *Request) { r.Name = strings.Repeat("x", 254) },
		"addresses":    func(r *Request) { r.Addresses = nil },
		"addresses[0]": func(r *Request) { r.Addresses[0] = netip.MustParseAddr("127.0.0.1") },
		"waitMs":       func(r *Request) { r.WaitMS = 60_001 },
		"containers":   func(r *Request) { r.Containers = make([]string, maxContainers+1) },
		"dns":          func(r *Request) { r.DNS = &DNS{Search: []string{"a\nnameserver 1.2.3.4"}} },
	} {
		r := good()
		spoil(&r)
		b, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(b); err == nil || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	r := good()
	b, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	later := strings.Replace(string(b), `"version":1`, `"version":7,"new":{"field":true}`, 1)
	if got, err := decode([]byte(later)); err != nil || got.UID != r.UID {
		t.Errorf("a request of a later version: %+v, %v", got, err)
	}
	if r.Name = strings.Repeat("x", maxMessage); true {
		if _, err := r.encode(); err == nil {
			t.Error("a request that does not fit into a message is encoded")
		}
	}
}

// What is decoded keeps to the bounds, and says the same when it is said again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"command":"ADD","uid":"u","container":"c","addresses":["10.0.0.1","::ffff:10.0.0.2","fd00::1"],"dns":{"servers":["10.0.0.10"]},"waitMs":5000}`))
	f.Add([]byte(`{"version":1,"command":"GC","containers":["a","b"]}`))
	f.Add([]byte(`{"version":1,"command":"DEL","uid":"u","container":"c","addresses":["fe80::1%eth0"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		decodeReply(b)
		r, err := decode(b)
		if err != nil {
			return
		}
		for _, a := range r.Addresses {
			if a.Is4In6() || !a.IsGlobalUnicast() || a.Zone() != "" {
				t.Errorf("address %s", a)
			}
		}
		if r.DNS != nil {
			for _, s := range r.DNS.Servers {
				if strings.ContainsAny(s, " \n\t") {
					t.Errorf("server %q", s)
				}
			}
		}
		if r.WaitMS < 0 || len(r.Addresses) > maxAddresses || r.Command != Retain && (r.UID == "" || r.Container == "") {
			t.Errorf("decoded %+v", r)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		same, err := decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := json.Marshal(same); err != nil || string(text) != string(again) {
			t.Errorf("%s is %s when it is said again, %v", again, text, err)
		}
	})
}
