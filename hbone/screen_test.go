package hbone

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone/header"
)

// What Screen refuses needs no handler and leaves nothing behind, with early data or
// without; what it admits is served by the handler that it returns.
func TestScreenRefusesWithoutAHandler(t *testing.T) {
	cfg, n := DefaultConfig(), 0
	cfg.Screen = func(in *Incoming) Handler {
		if n++; n%2 == 0 {
			return echoHandler
		}
		in.Refuse(503, Header{header.NameReason: string(header.ReasonOverload)})
		return nil
	}
	r := newRig(t, rigConfig{server: cfg, handler: func(context.Context, *Incoming) { t.Error("the handler of the session was called") }})
	for i := range 100 {
		st, err := r.client.Start(&Request{Authority: fmt.Sprint("a:", 1+i)})
		check(t, err)
		_, err = st.TryWrite([]byte("early"))
		check(t, err)
		_, err = st.AwaitResponse(t.Context())
		var status *StatusError
		switch refused := errors.As(err, &status); {
		case refused != (i%2 == 0) || !refused && err != nil:
			t.Fatalf("CONNECT %d: %v", i, err)
		case refused && status.Reason() != header.ReasonOverload:
			t.Fatalf("CONNECT %d: %v", i, err)
		case !refused:
			endStream(st)
		}
	}
	eventually(t, "no stream is left", func() bool { return r.server.Streams() == 0 && r.client.Streams() == 0 })
}
