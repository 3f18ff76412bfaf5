package hbone

import (
	"bytes"
	"io"
	"testing"
	"time"
)

// Whatever the reader delivers by itself, an application that does not read holds
// up neither the other streams nor the pings, and gets everything in order when it
// reads again.
func TestApplicationThatDoesNotReadHoldsUpNobody(t *testing.T) {
	for _, few := range []bool{false, true} {
		p := newProxied(t, rigConfig{})
		p.r.client.fewCPUs, p.r.server.fewCPUs = few, few
		stuck, app, _ := p.connect(t)
		app.SetReadBuffer(64 << 10)
		data := make([]byte, 8<<20)
		for i := range data {
			data[i] = byte(i >> 16)
		}
		go func() {
			stuck.Write(data)
			stuck.CloseWrite()
		}()
		eventually(t, "the server holds what the application does not take", func() bool {
			p.r.server.mu.Lock()
			defer p.r.server.mu.Unlock()
			for _, st := range p.r.server.streams {
				return st.Buffered() > min(1<<20, st.recv.first/2)
			}
			return false
		})
		for range 3 {
			client, other, _ := p.connect(t)
			go func() {
				io.Copy(struct{ io.Writer }{other}, struct{ io.Reader }{other})
				other.CloseWrite()
			}()
			go func() {
				client.Write(data[:1<<20])
				client.CloseWrite()
			}()
			client.SetReadDeadline(time.Now().Add(20 * time.Second))
			if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, data[:1<<20]) {
				t.Fatalf("few processors %v: %d bytes of 1 MiB came back beside the application that does not read: %v", few, len(got), err)
			}
		}
		if got, err := io.ReadAll(app); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("few processors %v: the application got %d bytes of %d in the end: %v", few, len(got), len(data), err)
		}
	}
}
