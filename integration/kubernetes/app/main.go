// Command app is an application in pods of tests: a server that says who it is, and a client
// that begins connections at a steady rate and says how each went.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("what is it to do? app serve, or app load URL"))
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	listen := flags.String("http", ":8080", "serve: address for HTTP")
	echo := flags.String("echo", ":7070", "serve: address of what sends back what it gets")
	rate := flags.Int("rate", 100, "load: connections to begin each second")
	duration := flags.Duration("for", 10*time.Second, "load: how long")
	limit := flags.Duration("limit", 10*time.Second, "load: how long one connection may take")
	flags.Parse(os.Args[2:])
	switch os.Args[1] {
	case "serve":
		fail(serve(*listen, *echo))
	case "load":
		load(flags.Arg(0), *rate, *duration, *limit)
	default:
		fail(fmt.Errorf("%s is none of serve and load", os.Args[1]))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serve says by HTTP which pod this is and whom it sees, and echoes. On SIGUSR1 it closes the port of HTTP, on SIGUSR2 it
// listens there again.
func serve(web, echo string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", echo)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				fail(err)
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello from %s to %s\n", name, r.RemoteAddr)
	})
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR1, syscall.SIGUSR2)
	for {
		l, err := net.Listen("tcp", web)
		if err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- http.Serve(l, handler) }()
		for open := true; open; {
			select {
			case err := <-ended:
				return err
			case s := <-told:
				if open = s != syscall.SIGUSR1; !open {
					l.Close()
				}
			}
		}
		for s := range told {
			if s == syscall.SIGUSR2 {
				break
			}
		}
	}
}

// outcome is how one connection went.
type outcome struct {
	At     time.Time `json:"at"` // when it was begun
	Millis float64   `json:"ms"` // until all of the answer was there, or the error
	Answer string    `json:"answer,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// load prints an outcome a line, in the order in which the connections ended. Each begins when
// it is its turn, whatever became of those before it.
func load(url string, rate int, duration, limit time.Duration) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var work sync.WaitGroup
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for end := time.Now().Add(duration); time.Now().Before(end); <-tick.C {
		work.Go(func() {
			o := outcome{At: time.Now()}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			var err error
			if o.Answer, err = get(ctx, client, url); err != nil {
				o.Error = err.Error()
			}
			o.Millis = float64(time.Since(o.At).Microseconds()) / 1000
			mu.Lock()
			defer mu.Unlock()
			out.Encode(o)
		})
	}
	work.Wait()
}

func get(ctx context.Context, client *http.Client, url string) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	r, err := client.Do(q)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return strings.TrimSpace(string(b)), err
}
