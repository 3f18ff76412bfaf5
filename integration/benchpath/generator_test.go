//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"
)

// listen serves one handler on a port of loopback.
func listen(t *testing.T, handle func(*net.TCPConn)) target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go handle(c.(*net.TCPConn))
		}
	}()
	return target{Address: netip.MustParseAddrPort(l.Addr().String())}
}

// generator is a control socket as the measurement uses it.
func generator(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "load.sock")
	go serveGenerator(socket)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return socket
		}
	}
	t.Fatal("the generator does not listen")
	return ""
}

// ask runs one load.
func ask(t *testing.T, socket string, r request) (got reply) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := &session{c, bufio.NewReader(c)}
	if err := json.NewEncoder(c).Encode(r); err != nil {
		t.Fatal(err)
	}
	if _, err := s.in.ReadBytes('\n'); err != nil {
		t.Fatal(err)
	}
	if got, err = s.run(); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEveryLoadMovesWhatItSays(t *testing.T) {
	app := listen(t, answer)
	relayed := listen(t, func(c *net.TCPConn) { relay(c, app.Address.String()) })
	socket := generator(t)
	for _, l := range loads(0.1, 20) {
		for way, to := range map[string]target{"direct": app, "relayed": relayed} {
			t.Run(l.Name+"/"+way, func(t *testing.T) {
				r := l.Request
				r.Target = to
				got := ask(t, socket, r)
				if got.Errors != 0 {
					t.Errorf("%d errors, the first: %s", got.Errors, got.First)
				}
				bulk := l.Unit == perGiB || r.Beside
				if bulk != (got.Bytes > 0) || (l.Unit != perGiB) != (got.Ops > 0) || got.Seconds <= 0 {
					t.Errorf("got %+v", got)
				}
				if r.Kind == "paced" && got.Ops != int64(r.Rate*r.Seconds) {
					t.Errorf("%d echoes, want %v every second for %v s", got.Ops, r.Rate, r.Seconds)
				}
				if r.Kind == "hold" && got.Ops != int64(r.Streams) {
					t.Errorf("%d connections are open, want %d", got.Ops, r.Streams)
				}
			})
		}
	}
}

// A path that stops for a while must not hide it by stopping the load: what was
// due meanwhile is late. In closed loop one echo would be.
func TestPacedCountsFromWhenAnEchoWasDue(t *testing.T) {
	const pause = 200 * time.Millisecond
	to := listen(t, func(c *net.TCPConn) {
		defer c.Close()
		buf := make([]byte, 1)
		io.ReadFull(c, buf)
		c.Write(buf)
		time.Sleep(pause)
		echoAll(c)
	})
	got := ask(t, generator(t), request{Kind: "paced", Target: to, Streams: 1, Seconds: 2 * pause.Seconds(), Rate: 500})
	// Half of the time the path stands still: a quarter of all echoes is late by
	// more than half of the pause.
	if late := float64(pause/time.Microsecond) * 0.9; got.P99 < late || got.Errors != 0 {
		t.Errorf("after a pause of %v p99 is %v µs with %d errors, want more than %v", pause, got.P99, got.Errors, late)
	}
}

func TestLostBytesAreErrors(t *testing.T) {
	for name, handle := range map[string]func(c *net.TCPConn){
		"up": func(c *net.TCPConn) { // says that it got less
			buf := make([]byte, 1)
			io.ReadFull(c, buf)
			c.Write(buf)
			discard(c)
			c.Write(make([]byte, 8))
		},
		"down": func(c *net.TCPConn) { // ends before its time
			buf := make([]byte, 1)
			io.ReadFull(c, buf)
			c.Write(buf)
			io.ReadFull(c, buf)
		},
		"echo": func(c *net.TCPConn) { // answers something else
			buf := make([]byte, echoBytes)
			io.ReadFull(c, buf[:1])
			c.Write(buf[:1])
			io.ReadFull(c, buf)
			c.Write(make([]byte, echoBytes))
		},
		"connect": func(c *net.TCPConn) { // says more than one byte
			buf := make([]byte, 2)
			io.ReadFull(c, buf[:1])
			c.Write(buf)
		},
		"hold":  func(*net.TCPConn) {}, // closes at once
		"paced": func(*net.TCPConn) {},
	} {
		t.Run(name, func(t *testing.T) {
			to := listen(t, func(c *net.TCPConn) {
				defer c.Close()
				handle(c)
			})
			got := ask(t, generator(t), request{Kind: name, Target: to, Streams: 2, Seconds: 0.05, Rate: 100})
			if got.Errors == 0 || got.First == "" {
				t.Errorf("no error: %+v", got)
			}
		})
	}
}

func TestSOCKSAsksForTheAddress(t *testing.T) {
	app := listen(t, answer)
	asked := make(chan string, 8)
	proxy := listen(t, func(c *net.TCPConn) {
		var greeting [3]byte
		var r [10]byte
		io.ReadFull(c, greeting[:])
		c.Write([]byte{5, 0})
		io.ReadFull(c, r[:])
		asked <- fmt.Sprint(netip.AddrFrom4([4]byte(r[4:8])), " ", int(r[8])<<8|int(r[9]))
		c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		relay(c, app.Address.String())
	})
	got := ask(t, generator(t), request{Kind: "connect", Streams: 1,
		Target: target{Address: netip.MustParseAddrPort("240.240.0.1:8080"), SOCKS: proxy.Address}})
	if got.Errors != 0 || got.Ops != 1 {
		t.Errorf("got %+v", got)
	}
	if got, want := <-asked, "240.240.0.1 8080"; got != want {
		t.Errorf("the proxy was asked for %s, want %s", got, want)
	}
}
