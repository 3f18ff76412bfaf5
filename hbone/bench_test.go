package hbone

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// tunnels opens streams for a benchmark: single, or double with one inner
// session kept on one outer stream.
func tunnels(b *testing.B, double bool, cfg Config, h Handler) func() *Stream {
	b.Helper()
	if !double {
		r := newRig(b, rigConfig{client: cfg, server: cfg, handler: h})
		return func() *Stream { return open(b, r.client) }
	}
	clientTLS, serverTLS := testTLS()
	// The gateway joins the outer stream to a TCP connection of the pod.
	r := newRig(b, rigConfig{client: cfg, server: cfg, handler: func(ctx context.Context, in *Incoming) {
		up, pod := tcpPair(b)
		go func() {
			tr, err := ServerTLS(context.Background(), pod, serverTLS)
			if err == nil {
				NewServer(tr, cfg, h).Serve(context.Background())
			}
		}()
		st, err := in.Accept(nil)
		if err == nil {
			Relay(ctx, st, up)
		}
	}})
	tr, err := ClientTLS(b.Context(), open(b, r.client), clientTLS)
	check(b, err)
	s, err := NewClient(b.Context(), tr, cfg)
	check(b, err)
	b.Cleanup(func() { s.Close(nil); <-s.life.transportClosed })
	return func() *Stream { return open(b, s) }
}

func discardHandler(ctx context.Context, in *Incoming) {
	st, err := in.Accept(nil)
	if err != nil {
		return
	}
	io.Copy(io.Discard, struct{ io.Reader }{st})
	st.Close()
}

// endHandler ends its half when the client has.
func endHandler(ctx context.Context, in *Incoming) {
	st, err := in.Accept(nil)
	if err != nil {
		return
	}
	st.WaitReadable()
	st.CloseWrite()
	st.Close()
}

func forms(b *testing.B, run func(b *testing.B, double bool)) {
	for _, double := range []bool{false, true} {
		name := "single"
		if double {
			name = "double"
		}
		b.Run(name, func(b *testing.B) { run(b, double) })
	}
}

// BenchmarkThroughput writes 64 KiB per operation, over 1 or 16 streams.
func BenchmarkThroughput(b *testing.B) {
	for _, streams := range []int{1, 16} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			forms(b, func(b *testing.B, double bool) {
				next := tunnels(b, double, DefaultConfig(), discardHandler)
				b.SetBytes(64 << 10)
				b.ReportAllocs()
				var wg sync.WaitGroup
				all := make([]*Stream, streams)
				for i := range all {
					all[i] = next()
				}
				b.ResetTimer()
				for i, st := range all {
					n := b.N / streams
					if i == 0 {
						n += b.N % streams
					}
					wg.Go(func() {
						buf := make([]byte, 64<<10)
						for range n {
							if _, err := st.Write(buf); err != nil {
								b.Error(err)
								return
							}
						}
						st.CloseWrite()
						st.Read(buf) // until the peer has read everything
						st.Close()
					})
				}
				wg.Wait()
			})
		})
	}
}

// BenchmarkProxied moves bytes from a TCP application to a TCP application
// through two relays and one tunnel.
func BenchmarkProxied(b *testing.B) {
	for _, conns := range []int{1, 16} {
		b.Run(fmt.Sprintf("conns=%d", conns), func(b *testing.B) {
			p := newProxied(b, rigConfig{})
			b.SetBytes(64 << 10)
			b.ReportAllocs()
			var wg sync.WaitGroup
			for i := range conns {
				client, app, result := p.connect(b)
				n := b.N / conns
				if i == 0 {
					n += b.N % conns
				}
				wg.Go(func() {
					buf := make([]byte, 64<<10)
					for range n {
						client.Write(buf)
					}
					client.CloseWrite()
				})
				wg.Go(func() {
					io.Copy(io.Discard, app)
					app.Close()
					<-result
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkProxiedEcho sends 1 KiB from application to application and back, through two
// relays and one tunnel, per operation.
func BenchmarkProxiedEcho(b *testing.B) {
	client, app, _ := newProxied(b, rigConfig{}).connect(b)
	go io.Copy(struct{ io.Writer }{app}, struct{ io.Reader }{app})
	buf := make([]byte, 1<<10)
	b.ReportAllocs()
	for b.Loop() {
		client.Write(buf)
		if _, err := io.ReadFull(client, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnect opens and ends one stream on a warm tunnel per operation.
func BenchmarkConnect(b *testing.B) {
	forms(b, func(b *testing.B, double bool) {
		next := tunnels(b, double, DefaultConfig(), endHandler)
		b.ReportAllocs()
		for b.Loop() {
			st := next()
			st.CloseWrite()
			io.Copy(io.Discard, st)
			st.Close()
		}
	})
}

// BenchmarkEcho sends 1 KiB there and back per operation.
func BenchmarkEcho(b *testing.B) {
	forms(b, func(b *testing.B, double bool) {
		st := tunnels(b, double, DefaultConfig(), echoHandler)()
		buf := make([]byte, 1<<10)
		b.ReportAllocs()
		for b.Loop() {
			st.Write(buf)
			if _, err := io.ReadFull(st, buf); err != nil {
				b.Fatal(err)
			}
		}
		st.Close()
	})
}

// BenchmarkIdle holds 10 000 ends of proxied connections that have echoed one
// byte (fewer if the file limit is low: each end takes two files here), and
// reports what an end costs: the stream, the relay and its goroutine. Both ends
// of each tunnel stream are in this process.
func BenchmarkIdle(b *testing.B) {
	var files syscall.Rlimit
	check(b, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	streams := min(5_000, (int(files.Cur)-200)/4)
	cfg := DefaultConfig()
	cfg.MaxStreams = streams
	for b.Loop() {
		apps := make(chan net.Conn, 1)
		r := newRig(b, rigConfig{client: cfg, server: cfg, handler: func(ctx context.Context, in *Incoming) {
			x, y := unixPair(b)
			st, err := in.Accept(nil)
			if err != nil {
				return
			}
			apps <- y
			Relay(ctx, st, x)
		}})
		var before, after runtime.MemStats
		settle(&before)
		goroutines := runtime.NumGoroutine()
		var open []net.Conn
		for range streams {
			x, y := unixPair(b)
			st, _, err := r.client.Open(b.Context(), &Request{Authority: "a:1"})
			check(b, err)
			go Relay(context.Background(), st, x)
			app := <-apps
			echoOnce(b, y, app)
			open = append(open, y, app)
		}
		settle(&after)
		ends := float64(2 * streams)
		b.ReportMetric(ends, "ends")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/ends, "goroutines/end")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/ends, "heap-B/end")
		b.ReportMetric(float64(after.StackInuse-before.StackInuse)/ends, "stack-B/end")
		for _, c := range open {
			c.Close()
		}
		r.close()
	}
}

func echoOnce(b *testing.B, client, app net.Conn) {
	one := make([]byte, 1)
	for _, way := range [][2]net.Conn{{client, app}, {app, client}} {
		way[0].Write(one)
		_, err := io.ReadFull(way[1], one)
		check(b, err)
	}
}

func settle(m *runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(m)
}
