package hbone

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// relayUntilKilled is set in the process that TestAKilledRelayResets starts: the
// address of the application to relay to.
const relayUntilKilled = "HBONE_TEST_RELAY_TO"

// A process that is killed in the middle of a relay must not end it: its kernel
// closes the connection to the application, and FIN would make what came so far look
// complete.
func TestAKilledRelayResets(t *testing.T) {
	if to := os.Getenv(relayUntilKilled); to != "" {
		relayTo(t, to)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	child := exec.Command(os.Args[0], "-test.run", "^TestAKilledRelayResets$")
	child.Env = append(os.Environ(), relayUntilKilled+"="+l.Addr().String())
	check(t, child.Start())
	app, err := l.Accept()
	check(t, err)
	defer app.Close()
	_, err = io.ReadFull(app, make([]byte, 4))
	check(t, err)
	check(t, child.Process.Signal(syscall.SIGKILL))
	child.Wait()
	if n, err := app.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the relay was killed the application reads %d bytes, %v; want a reset", n, err)
	}
}

// relayTo relays a stream to an application, and sends half of something, for ever.
func relayTo(t *testing.T, to string) {
	ready := make(chan struct{})
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		c, err := net.Dial("tcp", to)
		check(t, err)
		st, err := in.Accept(nil)
		check(t, err)
		close(ready)
		Relay(ctx, st, c)
	}})
	st := open(t, r.client)
	<-ready
	st.Write([]byte("half"))
	select {}
}
