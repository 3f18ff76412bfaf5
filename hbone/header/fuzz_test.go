package header

import "testing"

func FuzzHeaderValues(f *testing.F) {
	f.Add("k8s.cluster.name=c1,k8s.pod.name=x,service.name=s;p=1")
	f.Add("00-abababababababababababababababab-abababababababab-00")
	f.Add("00000000000000ff,0000000000000001")
	f.Add(`for="10.0.0.1:99";host="a.b"`)
	f.Fuzz(func(t *testing.T, s string) {
		if b := ParseBaggage(s); ParseBaggage(b.String()) != b && b.Workload != "" {
			t.Errorf("baggage %+v does not survive %q", b, b.String())
		}
		if ids := ParseAvoid(s); len(ids) > MaxAvoid || len(ParseAvoid(FormatAvoid(ids))) != len(ids) {
			t.Errorf("avoid %v", ids)
		}
		if trace, span, ok := ParseTraceparent(s); ok && (len(trace) != 32 || len(span) != 16) {
			t.Errorf("traceparent %q %q", trace, span)
		}
		if c := Cause(s); len(c) > maxCause || Cause(c) != c {
			t.Errorf("cause %q of %d bytes, read again %q", c, len(c), Cause(c))
		}
		ForwardedHost(s)
	})
}
