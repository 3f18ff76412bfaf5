package demoapp

import (
	"bufio"
	"fmt"
	"io"
	"testing"
	"time"
)

func TestAppMakesTransfersBothWays(t *testing.T) {
	_, addr := start(t, Request)
	c, err := dial(t, addr, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	r := bufio.NewReader(c)
	answer := func(n string) {
		t.Helper()
		if got, err := r.ReadString('\n'); got != fmt.Sprintf("west-1 %d %s\n", addr.Port(), n) || err != nil {
			t.Fatalf("got %q, %v; want the answer to %s", got, err, n)
		}
	}
	const bytes = 300_001
	fmt.Fprintf(c, "%s 7 %d\n", Pour, bytes)
	answer("7")
	got := make([]byte, bytes)
	if _, err := io.ReadFull(r, got); err != nil {
		t.Fatal(err)
	}
	for i, b := range got {
		if b != PatternAt(i) {
			t.Fatalf("byte %d is %q, want %q", i, b, PatternAt(i))
		}
	}
	fmt.Fprintf(c, "%s 8 %d\n", Sink, bytes)
	answer("8")
	if _, err := c.Write(got); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "hello 9\n") // the transfer is over exactly here
	answer("9")
	for _, odd := range []string{"pour 1 -5", "pour 1 many", "pour 1", "sink 1 "} { // no transfer
		fmt.Fprintf(c, "%s\n", odd)
		answer("1")
	}
}
