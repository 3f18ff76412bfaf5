package gossip

import (
	"testing"
	"time"
	"unsafe"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// setBack returns t, which must be of now, as it would have been read while the wall
// clock was d behind; the monotonic clock is as it is.
func setBack(t *testing.T, now time.Time, d time.Duration) time.Time {
	t.Helper()
	wall := (*uint64)(unsafe.Pointer(&now)) // seconds above 30 bits of nanoseconds
	*wall -= uint64(d/time.Second) << 30
	if off := time.Until(now).Abs(); off > time.Minute || time.Now().Unix()-now.Unix() < int64(d/time.Second) {
		t.Fatalf("the clocks are %v and %d s apart: time.Time is laid out in another way", off, time.Now().Unix()-now.Unix())
	}
	return now
}

// A gateway starts before its clock is set: its certificate has ended for everybody
// once it is. It is certified anew when the keys are read next.
func TestACertificateIsRenewedWhenTheClockIsSet(t *testing.T) {
	w := newWorld(t)
	g := w.add("east", "gw-1")
	for name, then := range map[string]time.Time{
		"forward": setBack(t, time.Now(), 48*time.Hour),
		"back":    time.Now().Add(48 * time.Hour),
	} {
		f, err := New(Config{Name: g.Name, Network: g.Network, Self: g.Identity, Identity: w.identity,
			Keys: func() (Keys, error) { return w.keysOf("east") }, Peers: func() []*mesh.Gateway { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.keys["east"].Certify(f.instance, "east", "gw-1", then, networkkey.MaxLifetime); err != nil {
			t.Fatal(err)
		}
		keys, err := w.keysOf("east")
		if err != nil {
			t.Fatal(err)
		}
		f.rekey(keys) // what renew does every 10 s
		c, err := keys.Known.Verify(f.instance.Certificate(), time.Now())
		if err != nil || c.NotBefore.After(time.Now()) || c.NotAfter.Before(time.Now().Add(networkkey.MaxLifetime/2)) {
			t.Errorf("after the clock was set %s the certificate is %+v, %v; want one of now", name, c, err)
		}
	}
}
