package answer

import "testing"

func TestLineNamesTransport(t *testing.T) {
	loss, quicLoss := 0.006, 0.0045
	tcp := Line{Connections: 1, Congestion: map[string]int{"bbr": 1}, RTTMicros: 40_000, Loss: &loss, BytesPerSecond: 1e6}
	const measured = "1 connection (bbr), round trip 40ms, 0.6 % lost, up to 8.0 Mbit/s"
	both, quic := tcp, Line{QUIC: 1, QUICRTTMicros: 83_540, QUICLoss: &quicLoss, Transport: "quic", Reason: "lines.transport"}
	both.QUIC, both.Transport, both.Reason = 2, "tcp", "UDP failed"
	for want, l := range map[string]Line{
		measured: tcp,
		measured + ", 2 QUIC connections (round trip 0s), small messages use tcp (UDP failed)":          both,
		"1 QUIC connection (round trip 83.5ms, 0.45 % lost), small messages use quic (lines.transport)": quic,
	} {
		if got := l.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
