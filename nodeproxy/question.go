package nodeproxy

import (
	"context"
	"net/netip"
	"os"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// askConnects is how many connects one question of the witness has, spread over its time.
const askConnects = 4

// ask asks the application of pod on port whether it takes connections, and returns nil if one of up to askConnects connects is
// answered within w.timeout. What a full accept queue drops the kernel sends again after a second: a single connect would say
// that the queue was full at one moment, which that of a busy application is now and then, and not that nobody is accepted. The
// next one begins while those before still wait; the first that is answered, or refused, decides. When ask returns none is open.
func (w *witness) ask(ctx context.Context, pod *mesh.Workload, port uint16) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout, os.ErrDeadlineExceeded)
	began, answers, waiting := time.Now(), make(chan error), 0
	defer func() {
		cancel()
		for ; waiting > 0; waiting-- {
			<-answers
		}
	}()
	for n := range askConnects {
		waiting++
		go func() {
			c, err := w.dialApp(ctx, pod, port, netip.Addr{})
			if err == nil {
				c.Close()
			}
			answers <- err
		}()
		next := time.NewTimer(time.Until(began.Add(w.timeout * time.Duration(n+1) / askConnects)))
		select {
		case err := <-answers:
			waiting--
			next.Stop()
			return err
		case <-next.C:
		}
	}
	waiting--
	return <-answers
}
