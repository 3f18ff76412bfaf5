package nodeproxy

import (
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Urgent bytes arrive as urgent, each at its place, through a relay as on one connection.
func TestPlainRelayDeliversUrgentData(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		for _, through := range []bool{false, true} {
			urgentSchedule(t, seed, through)
		}
	}
}

// urgentByte is one that was read as urgent, and how many bytes came before it.
type urgentByte struct {
	at    int
	value byte
}

func urgentSchedule(t *testing.T, seed uint64, through bool) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 31))
	var from, to *net.TCPConn
	if through {
		r := relayPlain(t)
		from, to = r.client, r.server
		if rnd.IntN(2) == 0 {
			from, to = to, from
		}
	} else {
		from, to = tcpPair(t)
	}
	urgentInline(to)
	sent, want := 0, []urgentByte(nil)
	read, reader := 0, []urgentByte(nil)
	part, buf := make([]byte, 1<<16), make([]byte, 1<<16)
	raw, err := to.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	to.SetReadDeadline(time.Now().Add(20 * time.Second))
	for range 1 + rnd.IntN(6) {
		n := rnd.IntN(3) * rnd.IntN(len(part))
		n = min(n, len(part))
		if _, err := from.Write(part[:n]); err != nil {
			t.Fatal(err)
		}
		if sent += n; rnd.IntN(3) > 0 {
			b := byte(1 + rnd.IntN(255))
			out, _ := from.SyscallConn()
			out.Write(func(fd uintptr) bool {
				_, err = unix.SendmsgN(int(fd), []byte{b}, nil, nil, unix.MSG_OOB)
				return err != unix.EAGAIN
			})
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, urgentByte{sent, b})
			sent++
		}
		for read < sent { // an urgent byte replaces one before it that was not read
			n, flags := 0, 0
			if e := raw.Read(func(fd uintptr) bool {
				n, flags, err = readPlain(int(fd), buf)
				return err != unix.EAGAIN
			}); e != nil || err != nil || n == 0 {
				t.Fatalf("seed %d, through %v: %d of %d bytes, then %v, %v", seed, through, read, sent, e, err)
			}
			if flags == unix.MSG_OOB {
				reader = append(reader, urgentByte{read, buf[0]})
			}
			read += n
		}
	}
	if !slices.Equal(reader, want) {
		t.Errorf("seed %d, through %v: urgent are %v, want %v", seed, through, reader, want)
	}
}
