package header

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
)

func TestHeadersAsAStockPeerWritesThem(t *testing.T) {
	b := Baggage{Cluster: "c1", Namespace: "shop", WorkloadType: "cronjob", Workload: "cart", ServiceName: "cart", Revision: "v1", Region: "r", Zone: "z"}
	want := "k8s.cluster.name=c1,k8s.namespace.name=shop,k8s.cronjob.name=cart,service.name=cart,service.version=v1,cloud.region=r,cloud.availability_zone=z"
	if got := b.String(); got != want {
		t.Errorf("baggage\n got %s\nwant %s", got, want)
	}
	if got := ParseBaggage(want); got != b {
		t.Errorf("parsed %+v, want %+v", got, b)
	}
	if got := (Baggage{Workload: "w"}).String(); got != "k8s.deployment.name=w" {
		t.Errorf("baggage of a bare workload: %s", got)
	}
	if got := Forwarded(netip.MustParseAddrPort("10.0.0.1:99"), "a.b"); got != `for="10.0.0.1:99";host=a.b` {
		t.Errorf("forwarded %s", got)
	}
	if got := Forwarded(netip.MustParseAddrPort("[::1]:99"), ""); got != `for="[::1]:99"` {
		t.Errorf("forwarded %s", got)
	}
	if got := ForwardedHost(`for="10.0.0.1:99";host="a.b"`); got != "a.b" {
		t.Errorf("host %s", got)
	}
	tp := NewTraceparent(bytes.NewReader(bytes.Repeat([]byte{0xab}, 24)))
	if tp != "00-abababababababababababababababab-abababababababab-00" {
		t.Errorf("traceparent %s", tp)
	}
	if trace, span, ok := ParseTraceparent(tp); !ok || len(trace) != 32 || len(span) != 16 {
		t.Errorf("parsed %s %s %v", trace, span, ok)
	}
}

func TestWeightOfOneThatDoesNotSayIsOne(t *testing.T) {
	for s, want := range map[string]uint32{"": 1, "0": 1, "1": 1, "300": 300, "65536": 65535, "4294967296": 1, "-2": 1, "x": 1, " 7": 1} {
		if got := ParseWeight(s); got != want {
			t.Errorf("%q is %d, want %d", s, got, want)
		}
	}
	if got := ParseWeight(FormatWeight(4096)); got != 4096 {
		t.Errorf("4096 became %d", got)
	}
}

func TestAvoidIsBoundedAndForgiving(t *testing.T) {
	ids := make([]uint64, 100)
	for i := range ids {
		ids[i] = uint64(i + 1)
	}
	if got := ParseAvoid(FormatAvoid(ids)); !slices.Equal(got, ids[:MaxAvoid]) {
		t.Errorf("got %v, want the first %d", got, MaxAvoid)
	}
	if got := ParseAvoid("zz, 00000000000000ff,,1"); !slices.Equal(got, []uint64{255}) {
		t.Errorf("got %v, want [255]", got)
	}
}
