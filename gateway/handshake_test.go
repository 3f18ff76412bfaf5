package gateway

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// record is a TLS record of n bytes of body.
func tlsRecord(kind byte, n int) []byte {
	return append([]byte{kind, tlsMajor, 3, byte(n >> 8), byte(n)}, make([]byte, n)...)
}

// A handshake is over when the pod begins a record behind a flight of the client that
// can have ended it, and nothing that a client does with its window makes it seem so
// earlier.
func TestAHandshakeIsOverWhenThePodAnswersTheClientsFlight(t *testing.T) {
	const change, alert = 20, 21
	firstFlight := append(append(tlsRecord(recordHandshake, 90), tlsRecord(change, 1)...), append(tlsRecord(recordEncrypted, 700), tlsRecord(recordEncrypted, 60)...)...)
	proof := append(tlsRecord(change, 1), tlsRecord(recordEncrypted, finishedMin)...)
	settings := tlsRecord(recordEncrypted, 40)
	type step struct {
		client []byte // passed to the pod
		pod    []byte // received from the pod
		read   int    // bytes of it that the client lets through; -1: all
	}
	for name, c := range map[string]struct {
		steps []step
		over  bool
	}{
		"flight, SETTINGS":                    {[]step{{nil, firstFlight, -1}, {proof, settings, -1}}, true},
		"a flight that is read in pieces":     {[]step{{nil, firstFlight, 7}, {nil, nil, 100}, {nil, nil, -1}, {proof, settings, -1}}, true},
		"the client's flight in pieces":       {[]step{{nil, firstFlight, -1}, {proof[:9], nil, 0}, {proof[9:], settings, -1}}, true},
		"SETTINGS that are not read":          {[]step{{nil, firstFlight, 300}, {proof, settings, len(firstFlight) - 300}}, false},
		"one byte within the pod's flight":    {[]step{{nil, firstFlight, 100}, {proof[:1], nil, -1}}, false},
		"a flight within the pod's":           {[]step{{nil, firstFlight, 100}, {proof, nil, -1}}, false},
		"half a record":                       {[]step{{nil, firstFlight, -1}, {proof[:len(proof)-1], settings, -1}}, false},
		"an alert":                            {[]step{{nil, firstFlight, -1}, {tlsRecord(recordEncrypted, 19), settings, -1}}, false},
		"an alert in plaintext":               {[]step{{nil, firstFlight, -1}, {tlsRecord(alert, 100), settings, -1}}, false},
		"a flight before the pod's":           {[]step{{proof, firstFlight, -1}, {nil, settings, -1}}, false},
		"nothing from the client":             {[]step{{nil, firstFlight, -1}, {nil, settings, -1}}, false},
		"another hello, its flight":           {[]step{{nil, tlsRecord(recordHandshake, 84), -1}, {tlsRecord(recordHandshake, 500), firstFlight, -1}}, false},
		"another hello, its flight, SETTINGS": {[]step{{nil, tlsRecord(recordHandshake, 84), -1}, {tlsRecord(recordHandshake, 500), firstFlight, -1}, {proof, settings, -1}}, true},
		"a flight before another hello":       {[]step{{nil, tlsRecord(recordHandshake, 84), -1}, {proof, nil, 0}, {tlsRecord(recordHandshake, 500), firstFlight, -1}}, false},
		"a flight behind another hello":       {[]step{{nil, tlsRecord(recordHandshake, 84), -1}, {append(tlsRecord(recordHandshake, 500), proof...), firstFlight, -1}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h, gw, pod, held := onePod(t)
			h.follow(gw, tlsRecord(recordHandshake, 500))
			sent := int64(0) // by the pod
			for _, s := range c.steps {
				h.sends(s.client)
				pod.Write(s.pod)
				sent += int64(len(s.pod))
				for tries := 0; h.received() < sent && tries < 5000; tries++ {
					time.Sleep(time.Millisecond)
				}
				if s.read < 0 {
					s.read = int(sent - h.pod.at)
				}
				p := make([]byte, s.read)
				if _, err := io.ReadFull(gw, p); err != nil {
					t.Fatal(err)
				}
				for len(p) > 0 {
					n := min(len(p), 11)
					h.replies(p[:n])
					p = p[n:]
				}
			}
			if over := held() == 0; over != c.over {
				t.Errorf("over: %v, want %v", over, c.over)
			}
			pod.Close()
			if h.replies(nil); held() != 0 {
				t.Error("it is not over at the pod's FIN")
			}
			if h.sends(proof) || h.replies(settings) {
				t.Error("it is followed behind its end")
			}
		})
	}
}

// onePod returns a handshake on a connection between a gateway and a pod, and how many
// are held.
func onePod(t *testing.T) (h *innerHandshake, gw, pod *net.TCPConn, held func() int) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); p.Close() })
	i := newInnerHandshakes(defaultLimits().Inner, prometheus.NewRegistry())
	slot, _ := i.queue.Enter(1, "a")
	return newInnerHandshake(slot), c.(*net.TCPConn), p.(*net.TCPConn), func() int { n, _ := i.queue.Counts(); return n }
}

// A handshake that is not over in time gives its place back and is cut, once; one that
// is over is not.
func TestAHandshakeIsCutWhenItsTimeIsUp(t *testing.T) {
	for _, over := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			i := newInnerHandshakes(defaultLimits().Inner, prometheus.NewRegistry())
			slot, _ := i.queue.Enter(1, "a")
			h := newInnerHandshake(slot)
			var cuts atomic.Int32
			h.expire(handshakeTime, func() { cuts.Add(1) })
			time.Sleep(handshakeTime - 1)
			synctest.Wait()
			if held, _ := i.queue.Counts(); held != 1 || cuts.Load() != 0 {
				t.Errorf("%d held and %d cut before its time is up", held, cuts.Load())
			}
			if over {
				h.end()
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			want := int32(1)
			if over {
				want = 0
			}
			if held, _ := i.queue.Counts(); held != 0 || cuts.Load() != want || h.expired() == over {
				t.Errorf("over %v: %d held and %d cut when its time is up, expired: %v", over, held, cuts.Load(), h.expired())
			}
		})
	}
}
