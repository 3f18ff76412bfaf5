package quic

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// tcpRig is the counterpart of newRig over TCP.
func tcpRig(b *testing.B, r *rig, h hbone.Handler) *hbone.Session {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(b, err)
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		t, err := hbone.ServerTLS(context.Background(), c, r.ids.ServerTLS(serverID, nil, "h2"))
		if err == nil {
			hbone.NewServer(t, hbone.DefaultConfig(), h).Serve(context.Background())
		}
	}()
	cfg, err := r.ids.ClientTLS(context.Background(), clientID, []spiffeid.ID{serverID}, "h2")
	check(b, err)
	c, err := net.Dial("tcp", l.Addr().String())
	check(b, err)
	t, err := hbone.ClientTLS(context.Background(), c, cfg)
	check(b, err)
	s, err := hbone.StartClient(t, hbone.DefaultConfig())
	check(b, err)
	b.Cleanup(func() { s.Close(nil); <-s.Closed(); <-done })
	return s
}

func both(b *testing.B, h hbone.Handler, run func(b *testing.B, s *hbone.Session)) {
	for _, kind := range []string{"tcp", "quic"} {
		b.Run(kind, func(b *testing.B) {
			r := newRig(b, rigConfig{handler: h, server: hbone.DefaultConfig()})
			s := r.client
			if kind == "tcp" {
				s = tcpRig(b, r, h)
			}
			run(b, s)
		})
	}
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func discard(_ context.Context, in *hbone.Incoming) {
	st, err := in.Accept(nil)
	if err != nil {
		return
	}
	io.Copy(io.Discard, struct{ io.Reader }{st})
	st.Close()
}

// BenchmarkThroughput writes 64 KiB per operation, and reports the CPU time of both ends.
func BenchmarkThroughput(b *testing.B) {
	both(b, discard, func(b *testing.B, s *hbone.Session) {
		const streams = 4
		b.SetBytes(64 << 10)
		cpu := cpuSeconds()
		b.ResetTimer()
		var wg sync.WaitGroup
		for i := range streams {
			n := b.N / streams
			if i == 0 {
				n += b.N % streams
			}
			st := open(b, s)
			wg.Go(func() {
				buf := make([]byte, 64<<10)
				for range n {
					if _, err := st.Write(buf); err != nil {
						b.Error(err)
						return
					}
				}
				st.CloseWrite()
				io.ReadAll(st)
				st.Close()
			})
		}
		wg.Wait()
		b.ReportMetric((cpuSeconds()-cpu)/(float64(b.N)*(64<<10)/(1<<30)), "CPU-s/GiB")
	})
}

// BenchmarkConnect opens a stream, exchanges a byte and closes it.
func BenchmarkConnect(b *testing.B) {
	both(b, echo, func(b *testing.B, s *hbone.Session) {
		b.ReportAllocs()
		one := make([]byte, 1)
		for b.Loop() {
			st := open(b, s)
			st.Write(one)
			st.CloseWrite()
			io.ReadAll(st)
			st.Close()
		}
	})
}

// BenchmarkEcho exchanges 1 KiB on an open stream.
func BenchmarkEcho(b *testing.B) {
	both(b, echo, func(b *testing.B, s *hbone.Session) {
		b.ReportAllocs()
		st := open(b, s)
		buf := make([]byte, 1<<10)
		for b.Loop() {
			st.Write(buf)
			if _, err := io.ReadFull(st, buf); err != nil {
				b.Fatal(err)
			}
		}
		st.Close()
	})
}

// BenchmarkIdleStream reports what an open stream costs both ends.
func BenchmarkIdleStream(b *testing.B) {
	both(b, echo, func(b *testing.B, s *hbone.Session) {
		const streams = 150
		for b.Loop() {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			goroutines := runtime.NumGoroutine()
			open := make([]*hbone.Stream, 0, streams)
			for range streams {
				st, _, err := s.Open(context.Background(), &hbone.Request{Authority: "app.default:80"})
				check(b, err)
				one := []byte{1}
				st.Write(one)
				io.ReadFull(st, one)
				open = append(open, st)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/streams, "goroutines/stream")
			b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)+int64(after.StackInuse)-int64(before.StackInuse))/streams, "B/stream")
			for _, st := range open {
				st.Close()
			}
			eventually(b, "no stream is left", func() bool { return s.Streams() == 0 })
		}
	})
}
