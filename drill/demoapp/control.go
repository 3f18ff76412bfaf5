package demoapp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Order is one line that a controller writes to an application's input.
type Order struct {
	Do      string `json:"do"`                 // refuse, hang, silent, slow or heal
	Port    uint16 `json:"port"`               // which of its ports
	DelayMS int64  `json:"delay_ms,omitempty"` // of slow: milliseconds
}

// Reply is one line that the application writes back: one when it is ready
// (Do is "ready"), then one for each order, once it has taken effect.
type Reply struct {
	Do    string `json:"do"`
	Port  uint16 `json:"port,omitempty"`
	Error string `json:"error,omitempty"` // empty: it took effect
}

// Control obeys orders from in, one JSON object to a line, and answers each on
// out, until in ends. It returns nil at the end of in: a controller that is
// gone wants no application left behind.
func (a *App) Control(ctx context.Context, in io.Reader, out io.Writer) error {
	enc := json.NewEncoder(out)
	if err := enc.Encode(Reply{Do: "ready"}); err != nil {
		return fmt.Errorf("control: write: %w", err)
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		r := a.obey(ctx, lines.Bytes())
		if err := enc.Encode(r); err != nil {
			return fmt.Errorf("control: write: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("control: read: %w", err)
	}
	return nil
}

func (a *App) obey(ctx context.Context, line []byte) Reply {
	var o Order
	if err := json.Unmarshal(line, &o); err != nil {
		return Reply{Error: fmt.Sprintf("order %q: %v", line, err)}
	}
	r := Reply{Do: o.Do, Port: o.Port}
	do, ok := map[string]func(context.Context, uint16) error{
		"refuse": a.Refuse, "hang": a.Hang, "silent": a.Silence, "heal": a.Heal,
		"slow": func(ctx context.Context, port uint16) error {
			return a.Slow(ctx, port, time.Duration(o.DelayMS)*time.Millisecond)
		},
	}[o.Do]
	if !ok {
		r.Error = fmt.Sprintf("order %q is unknown: use refuse, hang, silent, slow or heal", o.Do)
		return r
	}
	if err := do(ctx, o.Port); err != nil {
		r.Error = err.Error()
	}
	return r
}
