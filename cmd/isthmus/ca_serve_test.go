package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCAServeRefusesWhatIsUnsafe(t *testing.T) {
	ca, _ := madeCA(t)
	for args, want := range map[string]string{
		"--listen 0.0.0.0:0":               "--insecure-any-address",
		"--listen 192.0.2.1:15012":         "no loopback address",
		"--listen localhost:15012":         "write address:port",
		"--listen 127.0.0.1:0 --ttl 0s":    "too short",
		"--listen 127.0.0.1:0 --name a/b":  `"a/b"`,
		"--listen 127.0.0.1:0 --ttl never": `"never"`,
	} {
		code, out, errs := isthmus(t, append([]string{"ca", "serve", "--dir", ca}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" {
			t.Errorf("ca serve %s: exit %d, stdout %q, want %d and none", args, code, out, exitUsage)
		}
		wantIn(t, errs, want)
	}
	code, _, errs := isthmus(t, "ca", "serve", "--dir", filepath.Join(ca, "none"), "--listen", "127.0.0.1:0")
	if code != exitStart {
		t.Errorf("without a ca: exit %d, want %d", code, exitStart)
	}
	wantIn(t, errs, "isthmus ca init")
}

// It says where it listens as soon as it can be dialed, proves its names with
// the ca's root, and ends with 0 when it is interrupted.
func TestCAServeListensUntilItIsInterrupted(t *testing.T) {
	ca, _ := madeCA(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"ca", "serve", "--dir", ca, "--listen", "127.0.0.1:0", "--name", "ca.example"}, w, os.Stderr)
		w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	wantIn(t, line, "cluster.local listens on 127.0.0.1:")
	root, err := os.ReadFile(filepath.Join(ca, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	address := line[strings.LastIndexByte(line, ' ')+1 : len(line)-1]
	for _, name := range []string{"istiod.istio-system.svc", "ca.example"} {
		c, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: name, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.Close()
	}
	cancel()
	if code := <-done; code != exitOK {
		t.Errorf("exit %d, want %d", code, exitOK)
	}
}
